//! Opening the files of `FileOp`: regular ones of a real filesystem, found without magic links.

use std::os::fd::{AsFd, OwnedFd};

use dsec_weaken::keeps;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::failing::{shown, Doing, Fault};
use crate::in_root;

/// Links followed at the end of a path, as the kernel counts them.
const MAX_LINKS: usize = 40;
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Open a regular file for reading.
pub(crate) fn open_regular(path: &[u8]) -> Result<(OwnedFd, Stat), Fault> {
    let name = shown(path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match in_root::open_here(path, flags) {
        // What a socket and a device without a driver answer.
        Err(Errno::NXIO) => return Err(Fault::with(Errno::INVAL, irregular(&name))),
        result => result.doing(|| format!("open {name}"))?,
    };
    let stat = fs::fstat(&file).doing(|| format!("look at {name}"))?;
    regular(&stat, &name)?;
    refuse_proc(&file, &name)?;
    Ok((file, stat))
}

/// The files of /proc/self would be those of the helper that reads them, its memory among them.
pub(crate) fn refuse_proc(file: impl AsFd, name: &str) -> Result<(), Fault> {
    if keeps!("proc_files") && is_proc(file).doing(|| format!("look at {name}"))? {
        let message = format!("{name} belongs to /proc: read it by a program");
        return Err(Fault::with(Errno::ACCESS, message));
    }
    Ok(())
}

pub(crate) fn is_proc(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fs::fstatfs(file)?.f_type == PROC_SUPER_MAGIC)
}

fn irregular(name: &str) -> String {
    format!("{name} is not a regular file")
}

fn regular(stat: &Stat, name: &str) -> Result<(), Fault> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Fault::with(Errno::ISDIR, format!("{name} is a directory"))),
        _ => Err(Fault::with(Errno::INVAL, irregular(name))),
    }
}

/// Where a file is to be replaced.
pub(crate) struct Place {
    /// Its directory.
    pub(crate) directory: OwnedFd,
    /// Its name there; never a link.
    pub(crate) name: Vec<u8>,
    /// What is there now.
    pub(crate) present: Option<Stat>,
}

/// Find where `path` leads, links at its end included, and check that the caller may replace what is there.
pub(crate) fn find_place(path: &[u8], parents: bool) -> Result<Place, Fault> {
    let mut path = path.to_vec();
    for _ in 0..MAX_LINKS {
        let (parent, name) = parts(&path)?;
        let directory = open_directory(parent, parents)?;
        refuse_proc(&directory, &shown(&path))?;
        let present = match fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(Fault::with(errno, format!("look at {}", shown(&path)))),
        };
        if present.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            let target = fs::readlinkat(&directory, name, Vec::new())
                .doing(|| format!("read the link {}", shown(&path)))?;
            path = joined(parent, target.to_bytes());
            continue;
        }
        if let Some(stat) = &present {
            regular(stat, &shown(&path))?;
            fs::accessat(&directory, name, fs::Access::WRITE_OK, AtFlags::EACCESS)
                .doing(|| format!("replace {}", shown(&path)))?;
        }
        return Ok(Place {
            directory,
            name: name.to_vec(),
            present,
        });
    }
    Err(Fault::with(Errno::LOOP, "too many links"))
}

pub(crate) fn parts(path: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Fault::with(
            Errno::ISDIR,
            format!("{} is a directory", shown(path)),
        ));
    }
    Ok((parent, name))
}

pub(crate) fn joined(parent: &[u8], target: &[u8]) -> Vec<u8> {
    if target.starts_with(b"/") {
        return target.to_vec();
    }
    [parent, b"/", target].concat()
}

/// Open a directory, and with `make` first make what is missing of it.
pub(crate) fn open_directory(path: &[u8], make: bool) -> Result<OwnedFd, Fault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    match in_root::open_here(path, flags) {
        Err(Errno::NOENT) if make => {}
        result => return result.doing(|| format!("open the directory {}", shown(path))),
    }
    let (parent, name) = parts(path)?;
    let above = open_directory(parent, true)?;
    match fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => {
            return Err(Fault::with(
                errno,
                format!("make the directory {}", shown(path)),
            ));
        }
    }
    in_root::open_here(path, flags).doing(|| format!("open the directory {}", shown(path)))
}

#[cfg(test)]
mod tests {
    use super::{joined, parts};

    /// A path is a directory and a name; what ends in a slash or dots is none.
    #[test]
    fn splits_a_path() {
        for (path, parent, name) in [("/a", "/", "a"), ("a", ".", "a"), ("x/y/a", "x/y", "a")] {
            let split = parts(path.as_bytes()).expect("a file");
            assert_eq!(split, (parent.as_bytes(), name.as_bytes()));
        }
        for path in ["", "/", "a/", "a/..", "."] {
            assert!(parts(path.as_bytes()).is_err(), "{path}");
        }
    }

    /// A relative link starts at its own directory.
    #[test]
    fn follows_links() {
        assert_eq!(joined(b"/d", b"x"), b"/d/x");
        assert_eq!(joined(b"/d", b"/x"), b"/x");
    }
}
