//! In whose name a file operation is done, and on what.

use dsec_proto::runtime::{FileCalling, FileList, FileRead, FileWatch, FileWrite, Transfer};

/// What all requests of file operations say.
pub struct Who<'a> {
    /// The sandbox.
    pub sandbox_id: &'a str,
    /// The path that errors name.
    pub path: &'a [u8],
    /// As in `ExecSpec`.
    pub user: &'a str,
    /// Absolute; `None` is /.
    pub cwd: Option<&'a [u8]>,
}

/// A request of a file operation.
pub trait Asked {
    /// In whose name, and on what.
    fn who(&self) -> Who<'_>;
}

macro_rules! asked {
    ($($request:ty: $asked:ident => $path:expr;)+) => {$(
        impl Asked for $request {
            fn who(&self) -> Who<'_> {
                let $asked = self;
                Who {
                    sandbox_id: &self.sandbox_id,
                    path: $path,
                    user: &self.user,
                    cwd: self.cwd.as_ref().map(|path| path.as_slice()),
                }
            }
        }
    )+};
}

asked! {
    FileRead: asked => &asked.path;
    FileWrite: asked => &asked.path;
    FileCalling: asked => asked.call.path();
    FileList: asked => &asked.path;
    FileWatch: asked => &asked.path;
    Transfer: asked => &asked.path;
}
