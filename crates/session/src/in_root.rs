//! Paths below the root of a sandbox: hostile links cannot lead out, magic links of /proc lead nowhere.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dsec_weaken::keeps;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How often a lookup that raced with a rename is tried again.
const TRIES: u32 = 16;
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// What a missing mount target becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// An empty regular file.
    File,
}

/// Open `path` within `root`, links resolved as if `root` were "/".
pub(crate) fn open(root: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    resolve(
        root.as_fd(),
        path,
        flags,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Open `path` within `root`, which may lead through no link at all.
pub(crate) fn open_straight(root: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    resolve(
        root.as_fd(),
        path,
        flags,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
    )
}

/// Open `path` as this process sees it, but never through a magic link.
pub(crate) fn open_here(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let how = if keeps!("magic_links") {
        ResolveFlags::NO_MAGICLINKS
    } else {
        ResolveFlags::empty()
    };
    resolve(fs::CWD, path, flags, how)
}

/// Open `path` below a directory: neither dots nor links lead out of it.
pub(crate) fn open_beneath(
    directory: impl AsFd,
    path: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolve(directory.as_fd(), path, flags, how)
}

fn resolve(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), how) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Open the target of a mount (`O_PATH`), making it and its parents when they are missing. A link that leads
/// nowhere is replaced.
pub(crate) fn open_or_make(root: impl AsFd, path: &[u8], kind: Kind) -> Result<OwnedFd, Errno> {
    let root = root.as_fd();
    match open(root, path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let (parent, name) = split(path).ok_or(Errno::INVAL)?;
    let parent = open_or_make(root, parent, Kind::Directory)?;
    make(parent.as_fd(), name, kind)?;
    open(root, path, OFlags::PATH)
}

/// Parent and last component; `None` for the root itself and for `..`, which cannot be made.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    let name = &path[start..end];
    let parent = if start == 0 { b"/" } else { &path[..start] };
    (name != b"." && name != b"..").then_some((parent, name))
}

fn make(parent: BorrowedFd<'_>, name: &[u8], kind: Kind) -> Result<(), Errno> {
    match make_new(parent, name, kind) {
        Err(Errno::EXIST) => {}
        result => return result,
    }
    let found = fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        fs::unlinkat(parent, name, AtFlags::empty())?;
        return make_new(parent, name, kind);
    }
    Ok(())
}

fn make_new(parent: BorrowedFd<'_>, name: &[u8], kind: Kind) -> Result<(), Errno> {
    match kind {
        Kind::Directory => fs::mkdirat(parent, name, DIRECTORY_MODE),
        Kind::File => fs::mknodat(parent, name, FileType::RegularFile, FILE_MODE, 0),
    }
}

/// Make the directory `path` of this process's root, and its parents, and open it.
pub(crate) fn make_directories(path: &[u8]) -> Result<OwnedFd, Errno> {
    let root = open_here(b"/", OFlags::PATH | OFlags::DIRECTORY)?;
    let made = open_or_make(&root, path, Kind::Directory)?;
    match FileType::from_raw_mode(fs::fstat(&made)?.st_mode) {
        FileType::Directory => Ok(made),
        _ => Err(Errno::NOTDIR),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    /// The last component is what follows the last slash that is not at the end.
    #[test]
    fn splits_paths() {
        assert_eq!(split(b"/a/b"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(split(b"/a//b//"), Some((&b"/a//"[..], &b"b"[..])));
        assert_eq!(split(b"a"), Some((&b"/"[..], &b"a"[..])));
    }

    /// Neither the root nor a dot can be made.
    #[test]
    fn refuses_what_cannot_be_made() {
        for path in [&b"/"[..], b"", b"/a/..", b"/a/.", b"///"] {
            assert_eq!(split(path), None);
        }
    }
}
