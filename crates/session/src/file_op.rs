//! `End::File`: one file read or replaced by forked code, with the caller's IDs, inside the sandbox.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::failing::{shown, Doing, Fault};
use crate::file_target::{self, Place};
use crate::plan::{FileOp, FileReport};
use crate::sys;

const PART: usize = 128 * 1024;
const PERMISSIONS: u32 = 0o7777;
const NEW_FILE_MODE: u32 = 0o644;

/// Do the operation. `began` is called once the file is found good; what fails later is in the report.
pub(crate) fn run(op: &FileOp, fds: &[OwnedFd], began: &dyn Fn()) -> Result<FileReport, Fault> {
    sys::set_disposition(libc::SIGPIPE, true);
    match op {
        FileOp::Read {
            path,
            offset,
            limit,
            output,
        } => {
            let (file, stat) = file_target::open_regular(path)?;
            began();
            let output = fds[usize::from(*output)].as_fd();
            Ok(read(&file, &stat, *offset, *limit, output))
        }
        FileOp::Write {
            path,
            mode,
            parents,
            length,
            input,
        } => {
            let place = file_target::find_place(path, *parents)?;
            let draft = Draft::create(&place, *mode)
                .doing(|| format!("create a file beside {}", shown(path)))?;
            began();
            let input = fds[usize::from(*input)].as_fd();
            Ok(draft.fill_and_place(input, *length))
        }
    }
}

fn report(errno: Option<Errno>, bytes: u64, stat: &Stat) -> FileReport {
    FileReport {
        errno: errno.map_or(0, Errno::raw_os_error),
        bytes,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & PERMISSIONS,
    }
}

fn read(
    file: &OwnedFd,
    stat: &Stat,
    offset: u64,
    limit: Option<u64>,
    output: BorrowedFd<'_>,
) -> FileReport {
    let mut buffer = vec![0_u8; PART];
    let limit = limit.unwrap_or(u64::MAX);
    let mut done = 0_u64;
    while done < limit {
        let Some(position) = offset
            .checked_add(done)
            .filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        let part = buffer
            .len()
            .min(usize::try_from(limit - done).unwrap_or(PART));
        let length = match rustix::io::pread(file, &mut buffer[..part], position) {
            Ok(0) => break,
            Ok(length) => length,
            Err(errno) => return report(Some(errno), done, stat),
        };
        let (written, outcome) = write_all(output, &buffer[..length]);
        done += written as u64;
        if let Err(errno) = outcome {
            return report(Some(errno), done, stat);
        }
    }
    report(None, done, stat)
}

fn write_all(output: BorrowedFd<'_>, bytes: &[u8]) -> (usize, Result<(), Errno>) {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(output, &bytes[done..]) {
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(output, rustix::event::PollFlags::OUT),
            Err(errno) => return (done, Err(errno)),
        }
    }
    (done, Ok(()))
}

fn read_some(input: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::read(input, &mut *buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(input, rustix::event::PollFlags::IN),
            result => return result,
        }
    }
}

/// The other side may have made the shared pipe non-blocking.
fn wait_for(pipe: BorrowedFd<'_>, what: rustix::event::PollFlags) {
    let _interrupted = rustix::event::poll(&mut [rustix::event::PollFd::new(&pipe, what)], None);
}

/// A file under a hidden name that takes the place of another, or goes away.
struct Draft<'a> {
    place: &'a Place,
    name: String,
    file: OwnedFd,
    /// Permissions in the end: writing takes the set-ID bits away.
    mode: Mode,
}

impl<'a> Draft<'a> {
    fn create(place: &'a Place, mode: Option<u32>) -> Result<Self, Errno> {
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".{:016x}", u64::from_ne_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file = fs::openat(&place.directory, &name, flags | OFlags::NOFOLLOW, private)?;
        let kept = place.present.map_or(NEW_FILE_MODE, |stat| stat.st_mode);
        let draft = Self {
            place,
            name,
            file,
            mode: Mode::from_raw_mode(mode.unwrap_or(kept) & PERMISSIONS),
        };
        match draft.own() {
            Ok(()) => Ok(draft),
            Err(errno) => {
                draft.discard();
                Err(errno)
            }
        }
    }

    /// The owner of the file that it replaces. Somebody who may write a file that is another's keeps
    /// it from then on: only root can give files away.
    fn own(&self) -> Result<(), Errno> {
        let Some(stat) = self.place.present.as_ref() else {
            return Ok(());
        };
        let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        match fs::fchown(&self.file, Some(owner.0), Some(owner.1)) {
            Err(Errno::PERM | Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    fn fill_and_place(self, input: BorrowedFd<'_>, length: u64) -> FileReport {
        let (bytes, outcome) = self.fill(input, length);
        let outcome = outcome.and_then(|()| {
            fs::fchmod(&self.file, self.mode)?;
            let stat = fs::fstat(&self.file)?;
            let directory = &self.place.directory;
            fs::renameat(directory, &self.name, directory, self.place.name.as_slice())?;
            Ok(stat)
        });
        match outcome {
            Ok(stat) => report(None, bytes, &stat),
            Err(errno) => {
                self.discard();
                FileReport {
                    errno: errno.raw_os_error(),
                    bytes,
                    size: 0,
                    mode: 0,
                }
            }
        }
    }

    fn fill(&self, input: BorrowedFd<'_>, length: u64) -> (u64, Result<(), Errno>) {
        let mut buffer = vec![0_u8; PART];
        let mut done = 0_u64;
        while done < length {
            let part = buffer
                .len()
                .min(usize::try_from(length - done).unwrap_or(PART));
            let got = match read_some(input, &mut buffer[..part]) {
                Ok(0) => return (done, Err(Errno::NODATA)),
                Ok(got) => got,
                Err(errno) => return (done, Err(errno)),
            };
            let (written, outcome) = write_all(self.file.as_fd(), &buffer[..got]);
            done += written as u64;
            if outcome.is_err() {
                return (done, outcome);
            }
        }
        (done, Ok(()))
    }

    fn discard(&self) {
        let _gone = fs::unlinkat(&self.place.directory, &self.name, AtFlags::empty());
    }
}
