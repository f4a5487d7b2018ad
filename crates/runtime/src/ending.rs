//! SIGTERM: the keeper asks for it when the runtime is to be replaced, and the kernel sends it when the keeper has died.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::kernel::poll;
use crate::kernel::sys::{check, owned};

/// Why the runtime is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A successor takes everything up.
    Asked,
    /// The keeper is dead.
    Orphaned,
}

/// Waits for SIGTERM.
pub struct Ending {
    signals: AsyncFd<OwnedFd>,
    parent: libc::pid_t,
}

impl Ending {
    /// Takes SIGTERM over. To be called before any thread is started, since threads inherit what is blocked.
    ///
    /// # Errors
    /// The errno.
    pub fn prepare() -> io::Result<Self> {
        // SAFETY: `set` is initialised by sigemptyset before it is read; the rest are plain numbers.
        let (signals, parent) = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            check(libc::c_long::from(libc::pthread_sigmask(
                libc::SIG_BLOCK,
                &set,
                std::ptr::null_mut(),
            )))?;
            let signals = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            (owned(libc::c_long::from(signals))?, libc::getppid())
        };
        Ok(Self {
            signals: poll::watch(signals, Interest::READABLE)?,
            parent,
        })
    }

    /// Returns when the signal has come.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn came(&self) -> io::Result<Reason> {
        let read = |fd: &OwnedFd| {
            let mut info = [0u8; 128];
            // SAFETY: a buffer of the size of one signalfd_siginfo.
            check(
                unsafe { libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) }
                    as libc::c_long,
            )
        };
        self.signals.async_io(Interest::READABLE, read).await?;
        // SAFETY: takes and changes nothing.
        let orphaned = unsafe { libc::getppid() } != self.parent;
        Ok(if orphaned {
            Reason::Orphaned
        } else {
            Reason::Asked
        })
    }
}
