//! What a directory holds, as a stream of records in constant memory.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::failing::{shown, Doing, Fault};
use crate::file_calls::{failed, info, is, plain};
use crate::file_target::{is_proc, refuse_proc};
use crate::in_root;
use crate::pipe_io::Records;
use crate::plan::FileReport;

/// Levels that a list goes down at most; each is a descriptor.
pub(crate) const MOST_DEPTH: u32 = 64;
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Open what is to be listed.
pub(crate) fn open(path: &[u8]) -> Result<OwnedFd, Fault> {
    let directory = in_root::open_here(path, FLAGS).doing(|| format!("open {}", shown(path)))?;
    refuse_proc(&directory, &shown(path))?;
    Ok(directory)
}

/// List it, and what is below it down to `depth`. Entries that go meanwhile are left out.
pub(crate) fn run(directory: OwnedFd, depth: u32, output: &impl AsFd) -> FileReport {
    let mut records = Records::new(output);
    let mut list = List {
        depth: depth.clamp(1, MOST_DEPTH) as usize,
        stack: Vec::new(),
        path: Vec::new(),
    };
    let outcome = list
        .enter(directory, 0)
        .and_then(|()| list.run(&mut records))
        .and_then(|()| records.flush());
    let mut report = outcome.map_or_else(|errno| failed(plain(errno)), |()| FileReport::default());
    report.entries = records.count;
    report
}

/// A directory on the way down, and how long the path is up to it.
struct Level {
    directory: OwnedFd,
    entries: Dir,
    length: usize,
}

struct List {
    depth: usize,
    stack: Vec<Level>,
    path: Vec<u8>,
}

impl List {
    fn enter(&mut self, directory: OwnedFd, length: usize) -> Result<(), Errno> {
        self.stack.push(Level {
            entries: Dir::read_from(&directory)?,
            directory,
            length,
        });
        Ok(())
    }

    fn run(&mut self, records: &mut Records<'_>) -> Result<(), Errno> {
        while let Some(level) = self.stack.last_mut() {
            self.path.truncate(level.length);
            let Some(entry) = level.entries.read() else {
                self.stack.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.tell(name, records)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, name: &[u8], records: &mut Records<'_>) -> Result<(), Errno> {
        let Some(level) = self.stack.last() else {
            return Ok(());
        };
        let stat = match fs::statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            result => result?,
        };
        let target = if is(&stat, FileType::Symlink) {
            fs::readlinkat(&level.directory, name, Vec::new())
                .ok()
                .map(std::ffi::CString::into_bytes)
        } else {
            None
        };
        self.path.extend(name);
        records.add(&info(&self.path, &stat, target))?;
        if self.stack.len() < self.depth && is(&stat, FileType::Directory) {
            self.descend(name)?;
        }
        Ok(())
    }

    /// What may not be read, or has gone, is listed and not entered; neither is /proc, whose files are the helper's.
    fn descend(&mut self, name: &[u8]) -> Result<(), Errno> {
        let Some(level) = self.stack.last() else {
            return Ok(());
        };
        let flags = FLAGS | OFlags::NOFOLLOW;
        match fs::openat(&level.directory, name, flags, Mode::empty()) {
            Ok(directory) if !is_proc(&directory)? => {
                self.path.push(b'/');
                self.enter(directory, self.path.len())
            }
            Ok(_) | Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
