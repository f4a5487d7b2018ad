//! A new file that takes the place of another in one step, or leaves nothing behind, however its writer ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

pub(crate) const PERMISSIONS: u32 = 0o7777;
const PRIVATE: Mode = Mode::from_raw_mode(0o600);
const TRIES: u32 = 16;

/// A file without a name, or under a hidden one where the filesystem has no such files.
pub(crate) struct Draft<'a> {
    directory: BorrowedFd<'a>,
    pub(crate) file: OwnedFd,
    hidden: Option<String>,
}

impl<'a> Draft<'a> {
    pub(crate) fn create(directory: &'a impl AsFd) -> Result<Self, Errno> {
        let directory = directory.as_fd();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match fs::openat(directory, c".", flags | OFlags::TMPFILE, PRIVATE) {
            Ok(file) => {
                return Ok(Self {
                    directory,
                    file,
                    hidden: None,
                })
            }
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        let hidden = hidden_name()?;
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = fs::openat(directory, &hidden, flags, PRIVATE)?;
        Ok(Self {
            directory,
            file,
            hidden: Some(hidden),
        })
    }

    /// The owner of a file. Somebody who may write a file that is another's keeps it from then on: only root can
    /// give files away.
    pub(crate) fn own_as(&self, stat: &Stat) -> Result<(), Errno> {
        let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        match fs::fchown(&self.file, Some(owner.0), Some(owner.1)) {
            Err(Errno::PERM | Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Give it its permissions (last: writing takes the set-ID bits away) and its name, whatever file has it now.
    pub(crate) fn place(mut self, name: &[u8], mode: u32) -> Result<Stat, Errno> {
        fs::fchmod(&self.file, Mode::from_raw_mode(mode & PERMISSIONS))?;
        let stat = fs::fstat(&self.file)?;
        if self.hidden.is_none() {
            match self.link(name) {
                Err(Errno::EXIST) => {}
                result => return result.map(|()| stat),
            }
            let hidden = hidden_name()?;
            self.link(hidden.as_bytes())?;
            self.hidden = Some(hidden);
        }
        let hidden = self.hidden.take().unwrap_or_default();
        match fs::renameat(self.directory, &hidden, self.directory, name) {
            Ok(()) => Ok(stat),
            Err(errno) => {
                self.hidden = Some(hidden);
                Err(errno)
            }
        }
    }

    fn link(&self, name: &[u8]) -> Result<(), Errno> {
        fs::linkat(&self.file, c"", self.directory, name, AtFlags::EMPTY_PATH)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _gone = fs::unlinkat(self.directory, hidden, AtFlags::empty());
        }
    }
}

fn hidden_name() -> Result<String, Errno> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".dsec-{:016x}", u64::from_ne_bytes(random)))
}

/// Make something that cannot be made in the place of another: under a hidden name first, then moved there.
pub(crate) fn replace_by(
    directory: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn(&[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    match make(name) {
        Err(Errno::EXIST) => {}
        result => return result,
    }
    for _ in 0..TRIES {
        let hidden = hidden_name()?;
        match make(hidden.as_bytes()) {
            Err(Errno::EXIST) => continue,
            result => result?,
        }
        let moved = fs::renameat(directory, &hidden, directory, name);
        // A link to the same file is left by a rename that had nothing to do.
        let _gone = fs::unlinkat(directory, &hidden, AtFlags::empty());
        return moved;
    }
    Err(Errno::EXIST)
}
