//! Questions and changes whose report is all of their answer: stat, mkdir, move, remove.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use crate::draft::PERMISSIONS;
use crate::failing::Fault;
use crate::file_target::{is_proc, open_directory, parts, refuse_proc};
use crate::in_root;
use crate::plan::{FileCall, FileInfo, FileReport};

const NEW_DIRECTORY_MODE: u32 = 0o755;
/// Directories within directories that a removal follows; each is a descriptor.
const MOST_DEPTH: usize = 1000;
/// How often a directory that somebody goes on filling is emptied.
const EMPTIED: u32 = 64;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

pub(crate) fn run(call: &FileCall) -> FileReport {
    let outcome = match call {
        FileCall::Stat { path, follow } => stat(path, *follow),
        FileCall::Mkdir {
            path,
            parents,
            exist_ok,
            mode,
        } => mkdir(path, *parents, *exist_ok, *mode),
        FileCall::Move {
            source,
            target,
            overwrite,
        } => rename(source, target, *overwrite),
        FileCall::Remove {
            path,
            recursive,
            missing_ok,
        } => remove(path, *recursive, *missing_ok),
    };
    outcome.unwrap_or_else(failed)
}

/// The report of an operation that came to nothing.
pub(crate) fn failed(fault: Fault) -> FileReport {
    FileReport {
        errno: if fault.errno == 0 {
            libc::EIO
        } else {
            fault.errno
        },
        message: (!fault.message.is_empty()).then_some(fault.message),
        ..FileReport::default()
    }
}

/// A system call's error without further words.
pub(crate) fn plain(errno: Errno) -> Fault {
    Fault::with(errno, "")
}

/// What is known of a file, under the path given.
pub(crate) fn info(path: &[u8], stat: &Stat, target: Option<Vec<u8>>) -> FileInfo {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "char",
        _ => "block",
    };
    FileInfo {
        path: ByteBuf::from(path),
        kind: kind.to_owned(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & PERMISSIONS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_ns: stat
            .st_mtime
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        target: target.map(ByteBuf::from),
    }
}

pub(crate) fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn stat(path: &[u8], follow: bool) -> Result<FileReport, Fault> {
    let last = if follow {
        OFlags::PATH
    } else {
        OFlags::PATH | OFlags::NOFOLLOW
    };
    let found = in_root::open_here(path, last).map_err(plain)?;
    refuse_proc(&found, &crate::failing::shown(path))?;
    let stat = fs::fstat(&found).map_err(plain)?;
    let target = if is(&stat, FileType::Symlink) {
        let target = fs::readlinkat(&found, c"", Vec::new()).map_err(plain)?;
        Some(target.into_bytes())
    } else {
        None
    };
    Ok(FileReport {
        info: Some(info(path, &stat, target)),
        ..FileReport::default()
    })
}

/// A directory's path without slashes at its end: `a/` names what `a` names.
fn trimmed(path: &[u8]) -> &[u8] {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(path.len().min(1), |at| at + 1);
    &path[..end]
}

fn mkdir(
    path: &[u8],
    parents: bool,
    exist_ok: bool,
    mode: Option<u32>,
) -> Result<FileReport, Fault> {
    let there = |errno| {
        let found = in_root::open_here(path, OFlags::PATH | OFlags::DIRECTORY);
        if exist_ok && found.is_ok() {
            return Ok(FileReport::default());
        }
        Err(plain(errno))
    };
    let Ok((parent, name)) = parts(trimmed(path)) else {
        return there(Errno::EXIST);
    };
    let above = open_directory(parent, parents)?;
    refuse_proc(&above, &crate::failing::shown(path))?;
    let mode = Mode::from_raw_mode(mode.unwrap_or(NEW_DIRECTORY_MODE) & PERMISSIONS);
    match fs::mkdirat(&above, name, mode) {
        Ok(()) => {}
        Err(errno @ Errno::EXIST) => return there(errno),
        Err(errno) => return Err(plain(errno)),
    }
    let made = fs::openat(&above, name, DIRECTORY, Mode::empty()).map_err(plain)?;
    fs::fchmod(&made, mode).map_err(plain)?;
    Ok(FileReport {
        entries: 1,
        ..FileReport::default()
    })
}

fn rename(source: &[u8], target: &[u8], overwrite: bool) -> Result<FileReport, Fault> {
    let of_target = |mut fault: Fault| {
        fault.message = format!("the target, {}", crate::failing::shown(target));
        fault
    };
    let (old_parent, old) = parts(trimmed(source))?;
    let (new_parent, new) = parts(trimmed(target)).map_err(of_target)?;
    let from = open_directory(old_parent, false)?;
    fs::statat(&from, old, AtFlags::SYMLINK_NOFOLLOW).map_err(plain)?;
    let to = open_directory(new_parent, false).map_err(of_target)?;
    let how = if overwrite {
        RenameFlags::empty()
    } else {
        RenameFlags::NOREPLACE
    };
    match fs::renameat_with(&from, old, &to, new, how) {
        Ok(()) => Ok(FileReport::default()),
        Err(errno @ (Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR)) => {
            Err(of_target(plain(errno)))
        }
        Err(Errno::XDEV) => Err(Fault::with(
            Errno::XDEV,
            "it lies on another filesystem, or is a directory of the image's: `mv` copies such",
        )),
        Err(errno) => Err(plain(errno)),
    }
}

fn remove(path: &[u8], recursive: bool, missing_ok: bool) -> Result<FileReport, Fault> {
    let (parent, name) = parts(trimmed(path)).map_err(|fault| {
        Fault::with(
            Errno::BUSY,
            format!("{}: name what is to be removed", fault.message),
        )
    })?;
    let missing = |errno| missing_ok && matches!(errno, Errno::NOENT);
    let directory = match open_directory(parent, false) {
        Ok(directory) => directory,
        Err(fault) if missing_ok && fault.errno == libc::ENOENT => return Ok(FileReport::default()),
        Err(fault) => return Err(fault),
    };
    let mut removed = 0;
    let outcome = remove_at(directory.as_fd(), name, recursive, &mut removed);
    match outcome {
        Err(errno) if !(missing(errno) && removed == 0) => {
            let mut report = failed(plain(errno));
            report.entries = removed;
            Ok(report)
        }
        _ => Ok(FileReport {
            entries: removed,
            ..FileReport::default()
        }),
    }
}

fn remove_at(
    parent: BorrowedFd<'_>,
    name: &[u8],
    recursive: bool,
    removed: &mut u64,
) -> Result<(), Errno> {
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => {
            *removed += 1;
            return Ok(());
        }
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let found = fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !is(&found, FileType::Directory) {
        return Err(Errno::PERM);
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => {
            *removed += 1;
            return Ok(());
        }
        Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
        Err(errno) => return Err(errno),
    }
    Emptying {
        stack: vec![Level::enter(parent, name)?],
        removed,
    }
    .run(parent)
}

/// One directory on the way down.
struct Level {
    directory: OwnedFd,
    name: Vec<u8>,
    entries: Dir,
    /// How often it was found not empty after all.
    again: u32,
}

impl Level {
    fn enter(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let directory = fs::openat(parent, name, DIRECTORY, Mode::empty())?;
        if is_proc(&directory)? {
            return Err(Errno::BUSY);
        }
        Ok(Self {
            entries: Dir::read_from(&directory)?,
            directory,
            name: name.to_vec(),
            again: 0,
        })
    }
}

/// A tree on its way out, by descriptors: no link is ever followed.
struct Emptying<'a> {
    stack: Vec<Level>,
    removed: &'a mut u64,
}

impl Emptying<'_> {
    fn run(&mut self, top: BorrowedFd<'_>) -> Result<(), Errno> {
        while let Some(level) = self.stack.last_mut() {
            match level.entries.read() {
                Some(entry) => {
                    let entry = entry?;
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        self.take(name)?;
                    }
                }
                None => self.leave(top)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &[u8]) -> Result<(), Errno> {
        let depth = self.stack.len();
        let Some(level) = self.stack.last() else {
            return Ok(());
        };
        match remove_at(level.directory.as_fd(), name, false, self.removed) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if depth >= MOST_DEPTH => Err(Errno::NAMETOOLONG),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let level = Level::enter(level.directory.as_fd(), name)?;
                self.stack.push(level);
                Ok(())
            }
            // Somebody else was quicker.
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    fn leave(&mut self, top: BorrowedFd<'_>) -> Result<(), Errno> {
        let Some(mut level) = self.stack.pop() else {
            return Ok(());
        };
        let above = self
            .stack
            .last()
            .map_or(top, |above| above.directory.as_fd());
        match fs::unlinkat(above, level.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) => {
                *self.removed += 1;
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.again < EMPTIED => {
                level.again += 1;
                level.entries = Dir::read_from(&level.directory)?;
                self.stack.push(level);
                Ok(())
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::trimmed;

    /// Slashes at the end do not name anything else; the root stays the root.
    #[test]
    fn trims_slashes() {
        for (path, name) in [
            ("a/", "a"),
            ("/a//", "/a"),
            ("/", "/"),
            ("//", "/"),
            ("", ""),
        ] {
            assert_eq!(trimmed(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }
}
