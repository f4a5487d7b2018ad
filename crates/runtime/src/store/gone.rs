//! When a file system is really gone: unmounted is not enough, overlays hold copies of its mount.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::kernel::sys::{c, check, owned};

const EVENT: usize = size_of::<libc::inotify_event>();

/// Tells of the end of one file system.
pub struct Gone(OwnedFd);

impl Gone {
    /// Watches the file system that is mounted here.
    ///
    /// # Errors
    /// The errno.
    pub fn watch(mount: &Path) -> io::Result<Self> {
        let flags = libc::IN_CLOEXEC | libc::IN_NONBLOCK;
        // SAFETY: plain numbers.
        let watching = owned(libc::c_long::from(unsafe { libc::inotify_init1(flags) }))?;
        let path = c(mount.as_os_str().as_bytes())?;
        // SAFETY: a valid string. The kernel says IN_UNMOUNT whatever is watched for.
        check(libc::c_long::from(unsafe {
            libc::inotify_add_watch(watching.as_raw_fd(), path.as_ptr(), libc::IN_ATTRIB)
        }))?;
        Ok(Self(watching))
    }

    /// Whether it is gone.
    #[must_use]
    pub fn has_come(&self) -> bool {
        let mut waits = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry that outlives the call.
        if unsafe { libc::poll(&raw mut waits, 1, 0) } != 1 {
            return false;
        }
        let mut event = [0u8; EVENT];
        // SAFETY: room for one event, which has no name.
        let read = unsafe { libc::read(self.0.as_raw_fd(), event.as_mut_ptr().cast(), EVENT) };
        let mask = u32::from_ne_bytes([event[4], event[5], event[6], event[7]]);
        read == EVENT as isize && mask & libc::IN_UNMOUNT != 0
    }
}
