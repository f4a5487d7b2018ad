//! The event group: a mark on each file, its events, the answers to them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A read of a range is about to happen (Linux 6.14).
const FAN_PRE_ACCESS: u64 = 0x0010_0000;
const FAN_ALLOW: u32 = 1;
const FAN_DENY: u32 = 2;
const INFO_RANGE: u8 = 6;

const METADATA: usize = size_of::<libc::fanotify_event_metadata>();
/// Bytes of one event: its metadata and its range.
pub const EVENT: usize = METADATA + 24;

/// An event, as the kernel wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its descriptor; the number is what it is answered by.
    pub fd: RawFd,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// The group, shared with every process that has a copy of its descriptor.
#[derive(Debug)]
pub struct Group(OwnedFd);

impl Group {
    /// A new one. Its queue has no bound: a full one lets readers through to what is not there.
    ///
    /// # Errors
    /// The errno: `EINVAL` before Linux 6.14.
    pub fn new() -> io::Result<Self> {
        Self::with(libc::FAN_UNLIMITED_QUEUE)
    }

    /// One with the kernel's default bound, which loses events: for tests that show so.
    ///
    /// # Errors
    /// The errno.
    #[doc(hidden)]
    pub fn with_bounded_queue() -> io::Result<Self> {
        Self::with(0)
    }

    fn with(queue: u32) -> io::Result<Self> {
        let flags = libc::FAN_CLASS_PRE_CONTENT
            | queue
            | libc::FAN_UNLIMITED_MARKS
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK;
        let files = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: plain numbers.
        let fd = unsafe { libc::fanotify_init(flags, files as u32) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new and ours.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whatever reads this file from now on waits. Descriptors that are open already do not.
    ///
    /// # Errors
    /// The errno.
    pub fn mark(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_ADD, file)
    }

    /// Nobody waits any more; a file that has no mark is no fault.
    ///
    /// # Errors
    /// The errno.
    pub fn unmark(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        match self.change(libc::FAN_MARK_REMOVE, file) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    fn change(&self, how: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        let group = self.0.as_raw_fd();
        // SAFETY: without a path the mark is the descriptor's own file.
        let done = unsafe {
            libc::fanotify_mark(
                group,
                how,
                FAN_PRE_ACCESS,
                file.as_raw_fd(),
                std::ptr::null(),
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Has the kernel write events that wait into `buffer`, at most as many as fit. Returns the bytes, 0 without any.
    ///
    /// # Errors
    /// The errno.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.0, buffer) {
            Ok(bytes) => Ok(bytes),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers an event: its reader goes on, or gets this errno. One that is not (or no longer) asked is no fault.
    ///
    /// # Errors
    /// The errno.
    pub fn answer(&self, fd: RawFd, errno: Option<u8>) -> io::Result<()> {
        let response = errno.map_or(FAN_ALLOW, |errno| FAN_DENY | u32::from(errno) << 24);
        let mut bytes = [0u8; 8];
        bytes[..4].copy_from_slice(&fd.to_ne_bytes());
        bytes[4..].copy_from_slice(&response.to_ne_bytes());
        match rustix::io::write(&self.0, &bytes) {
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl From<OwnedFd> for Group {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Group> for OwnedFd {
    fn from(group: Group) -> Self {
        group.0
    }
}

impl std::os::fd::AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The events in what the kernel wrote, up to the first that has no length.
pub fn events(bytes: &[u8]) -> impl Iterator<Item = Event> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = number::<4>(rest, 0).map(u32::from_ne_bytes)? as usize;
        if length < METADATA || length > rest.len() {
            return None;
        }
        let (event, after) = rest.split_at(length);
        rest = after;
        let fd = number::<4>(event, 16).map(i32::from_ne_bytes)?;
        let (offset, length) = range(&event[METADATA..]).unwrap_or((0, u64::MAX));
        Some(Event { fd, offset, length })
    })
}

/// An event without a range means the whole file.
fn range(mut info: &[u8]) -> Option<(u64, u64)> {
    loop {
        let length = usize::from(number::<2>(info, 2).map(u16::from_ne_bytes)?);
        if info[0] == INFO_RANGE {
            let at = |place| number::<8>(info, place).map(u64::from_ne_bytes);
            return Some((at(8)?, at(16)?));
        }
        info = info.get(length.max(4)..)?;
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}
