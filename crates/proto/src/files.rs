//! `runtime.sock`: parameters and results of the file methods.

use dsec_session::plan::{FileCall, FileInfo};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::runtime::Offsets;

/// Parameters of `file.read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    /// The sandbox.
    pub sandbox_id: String,
    /// Relative to cwd.
    pub path: ByteBuf,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// First byte.
    pub offset: u64,
    /// At most so many.
    pub limit: Option<u64>,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}

/// Parameters of `file.write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    /// The sandbox.
    pub sandbox_id: String,
    /// Relative to cwd.
    pub path: ByteBuf,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Make missing directories.
    pub parents: bool,
    /// Exactly so many bytes follow.
    pub length: u64,
}

/// What a file operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReport {
    /// Bytes copied.
    pub bytes: u64,
    /// Size of the file.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
}

/// Parameters of `file.call`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileCalling {
    /// The sandbox.
    pub sandbox_id: String,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// What is to be done.
    pub call: FileCall,
}

/// Answer to `file.call`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCalled {
    /// Of `stat`.
    pub info: Option<FileInfo>,
    /// How many were made or removed.
    pub entries: u64,
}

/// Parameters of `file.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    /// The sandbox.
    pub sandbox_id: String,
    /// Relative to cwd.
    pub path: ByteBuf,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// Levels, 1 to 64.
    pub depth: u32,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}

/// Parameters of `file.watch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWatch {
    /// The sandbox.
    pub sandbox_id: String,
    /// Relative to cwd.
    pub path: ByteBuf,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// Everything below it too.
    pub recursive: bool,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}

/// The end of `file.list` and `file.watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileListed {
    /// Records sent.
    pub entries: u64,
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Into the sandbox.
    Upload,
    /// Out of it.
    Download,
}

/// Parameters of `transfer.upload` and `transfer.download`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The sandbox.
    pub sandbox_id: String,
    /// Chosen by the client; shaped like an exec ID.
    pub transfer_id: String,
    /// It has begun: attach, never begin.
    pub resume: bool,
    /// Of a download: what the client has.
    pub offset: u64,
    /// Relative to cwd.
    pub path: ByteBuf,
    /// As in [`crate::runtime::ExecSpec`].
    pub user: String,
    /// Absolute; `nil` is /.
    pub cwd: Option<ByteBuf>,
    /// Of an upload: make missing parents.
    #[serde(default)]
    pub parents: bool,
    /// Of an upload: the archive's owners, not the user.
    #[serde(default)]
    pub owners: bool,
    /// Of a download: what a link leads to, not the link.
    #[serde(default)]
    pub follow: bool,
    /// Of a download: what the path is called in the archive; `.` otherwise.
    #[serde(default)]
    pub name: Option<ByteBuf>,
}

/// Parameters of `transfer.cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferCancel {
    /// The sandbox.
    pub sandbox_id: String,
    /// Which.
    pub transfer_id: String,
}

/// The first item of a transfer's stream: where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferAt {
    /// Bytes of the archive that have gone through.
    pub at: u64,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferEnd {
    /// Bytes of file content, holes included.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// Sockets, FIFOs and devices left out.
    pub skipped: u64,
}
