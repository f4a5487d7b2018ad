//! Listeners of seccomp filters: calls that wait for an answer, and the one answer that is given.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::sys;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// Its number.
    pub number: i32,
    /// Its arguments, of which only the values are known.
    pub arguments: [u64; 6],
}

/// Takes one call. Only after the listener was seen to be readable, by its one reader: it would wait otherwise. `None`:
/// whoever called is gone.
///
/// # Errors
/// The errno.
pub fn receive(listener: &impl AsRawFd) -> io::Result<Option<Call>> {
    // SAFETY: plain data, all zero is a valid value of it, and what the kernel asks for.
    let mut taken: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: a borrowed descriptor, and a place of the size that the number of the command says.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &mut taken,
        )
    };
    match sys::check(libc::c_long::from(result)) {
        Ok(_) => Ok(Some(Call {
            id: taken.id,
            number: taken.data.nr,
            arguments: taken.data.args,
        })),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets a call end with EPERM. One whose caller is gone, or begins it anew after a signal, needs no answer.
pub fn refuse(listener: &impl AsRawFd, call: &Call) {
    let mut answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: -libc::EPERM,
        flags: 0,
    };
    // SAFETY: a borrowed descriptor, and a structure of the size that the number of the command says.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &mut answer,
        )
    };
}

/// Whether filters can have listeners here: not where one is about this process already.
///
/// # Errors
/// Why not.
pub fn can_listen() -> io::Result<()> {
    let trial = || {
        let allow = libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0x7fff_0000,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: std::ptr::from_ref(&allow).cast_mut(),
        };
        // SAFETY: one filter that lives across the call, for this thread alone, which ends.
        sys::owned(unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                std::ptr::from_ref(&program),
            )
        })
        .map(drop)
    };
    std::thread::spawn(trial)
        .join()
        .map_err(|_| io::Error::other("the trial died"))?
}

/// Many listeners that are waited for together.
pub struct Set(OwnedFd);

/// What one of them has.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// As it was added.
    pub key: u64,
    /// Whether a call waits; else nobody is left who could make one.
    pub waits: bool,
}

/// Most that are told of at once.
const AT_ONCE: usize = 64;

impl Set {
    /// An empty one.
    ///
    /// # Errors
    /// The errno.
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain flags; the result is checked before it is owned.
        let made = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        sys::owned(libc::c_long::from(made)).map(Self)
    }

    fn control(&self, what: i32, listener: &impl AsRawFd, key: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: key,
        };
        let (set, fd) = (self.0.as_raw_fd(), listener.as_raw_fd());
        // SAFETY: descriptors that live across the call, and a structure that the kernel copies.
        let done = unsafe { libc::epoll_ctl(set, what, fd, &mut event) };
        sys::check(libc::c_long::from(done)).map(drop)
    }

    /// Waits for this one too. It must be taken out before its last descriptor of ours is closed.
    ///
    /// # Errors
    /// The errno.
    pub fn add(&self, listener: &impl AsRawFd, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, listener, key, libc::EPOLLIN)
    }

    /// Whether its calls are waited for, or have to wait.
    ///
    /// # Errors
    /// The errno.
    pub fn arm(&self, listener: &impl AsRawFd, key: u64, on: bool) -> io::Result<()> {
        let events = if on { libc::EPOLLIN } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, listener, key, events)
    }

    /// Takes it out: others may still have it open.
    pub fn remove(&self, listener: &impl AsRawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, listener, 0, 0);
    }

    /// Waits for at most so many milliseconds, for ever below 0.
    ///
    /// # Errors
    /// The errno.
    pub fn wait(&self, most_ms: i32) -> io::Result<Vec<Ready>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        // SAFETY: a buffer and its length.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                AT_ONCE as i32,
                most_ms,
            )
        };
        let count = match sys::check(libc::c_long::from(count)) {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let ready = |event: &libc::epoll_event| Ready {
            key: event.u64,
            waits: event.events & libc::EPOLLIN as u32 != 0,
        };
        Ok(events[..count].iter().map(ready).collect())
    }
}
