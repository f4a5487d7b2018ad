//! The descriptor table. Low numbers are the kernel's, for events: an event is answered by its number, so a successor
//! must be able to keep the numbers of the events that it took up. Everything of the holder's own lies above.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::journal::MOST;

/// First number of the holder's own: events, and what is on its way up, stay below.
const OWN: RawFd = MOST as RawFd + 512;
/// What there must be above.
const ROOM: u64 = 512;

/// Raises the limit to the most that is allowed.
///
/// # Errors
/// When that is not enough for events and layers.
pub fn prepare() -> io::Result<()> {
    let mut limit: Rlimit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    match limit.maximum {
        Some(most) if most < OWN as u64 + ROOM => Err(io::Error::other(format!(
            "{most} descriptors are too few, {} are needed",
            OWN as u64 + ROOM
        ))),
        _ => Ok(()),
    }
}

/// Moves a descriptor above those of events.
///
/// # Errors
/// The errno.
pub fn aside(fd: OwnedFd) -> io::Result<OwnedFd> {
    copy(&fd)
}

/// A copy above those of events.
///
/// # Errors
/// The errno.
pub fn copy(fd: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, OWN)?)
}

/// Occupies the number of an event that a dead holder had read, so that no new event gets it.
///
/// # Errors
/// The errno; a number that cannot be an event's is `InvalidData`.
pub fn reserve(number: RawFd) -> io::Result<()> {
    if !(3..OWN).contains(&number) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let nothing = aside(File::open("/dev/null")?.into())?;
    // SAFETY: own descriptors are above, so the number is nobody's; it is closed when the event has been answered.
    let done = unsafe { libc::dup3(nothing.as_raw_fd(), number, libc::O_CLOEXEC) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives back an event's number.
pub fn release(number: RawFd) {
    // SAFETY: the kernel opened it for an event that has been answered, or `reserve` did; nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Which file an event is about: device and inode.
///
/// # Errors
/// The errno.
pub fn identity(number: RawFd) -> io::Result<(u64, u64)> {
    // SAFETY: an event's descriptor stays open until it is answered.
    identity_of(&unsafe { BorrowedFd::borrow_raw(number) })
}

/// Device and inode of a file.
///
/// # Errors
/// The errno.
pub fn identity_of(file: &impl AsFd) -> io::Result<(u64, u64)> {
    let found = rustix::fs::fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}
