//! What the keeper makes of its own process, and the few calls without a wrapper.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::DumpableBehavior;

/// Highest signal number.
const LAST_SIGNAL: i32 = 64;

/// Non-dumpable (so every forked child is, from its first instruction), subreaper, signals as by default.
pub(crate) fn prepare() -> Result<(), Errno> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    for signal in 1..=LAST_SIGNAL {
        set_default(signal);
    }
    Ok(())
}

/// By the system call, since the C library keeps two numbers to itself that may have been inherited ignored.
fn set_default(signal: i32) {
    const SET_BYTES: usize = 8;
    // The kernel's structure: handler (0 is the default), flags, restorer, mask.
    let action = [0_u64; 4];
    // SAFETY: the array is as long as the structure; numbers that cannot be set are left alone by the kernel.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            std::ptr::null_mut::<u64>(),
            SET_BYTES,
        )
    };
}

fn handled() -> libc::sigset_t {
    // SAFETY: an all-zero sigset_t is a valid one, and sigemptyset makes it the empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives, and the numbers are signals.
    unsafe {
        libc::sigemptyset(&mut set);
        for signal in [
            libc::SIGCHLD,
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGPIPE,
        ] {
            libc::sigaddset(&mut set, signal);
        }
    }
    set
}

/// Block the signals that the loop reads, and open the descriptor that it reads them from.
pub(crate) fn signal_fd() -> Result<OwnedFd, Errno> {
    let set = handled();
    // SAFETY: the set lives across both calls; the descriptor returned is ours alone.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(last_errno());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The numbers of the signals that wait.
pub(crate) fn take_signals(fd: &OwnedFd) -> Vec<i32> {
    const RECORD: usize = size_of::<libc::signalfd_siginfo>();
    let mut buffer = [0_u8; RECORD * 8];
    let mut numbers = Vec::new();
    while let Ok(length @ 1..) = rustix::io::read(fd, &mut buffer) {
        let records = buffer[..length].chunks_exact(RECORD);
        numbers.extend(
            records.map(|record| i32::from_ne_bytes([record[0], record[1], record[2], record[3]])),
        );
    }
    numbers
}

/// A child that has ended and is not yet reaped.
pub(crate) fn dead_child() -> Option<i32> {
    // SAFETY: siginfo_t is plain data; all zero means that no child was found.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: info lives across the call.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &mut info, flags) };
    // SAFETY: after a successful waitid the record is one of SIGCHLD, or all zero.
    let pid = unsafe { info.si_pid() };
    (result == 0 && pid > 0).then_some(pid)
}

/// Fork; `true` in the child.
pub(crate) fn fork() -> Result<Option<i32>, Errno> {
    // SAFETY: called before any thread exists; both sides go on with their own copy.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Make `fd` (standard input, output or error) /dev/null, or a copy of `source`.
pub(crate) fn redirect(source: &OwnedFd, number: i32) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: the standard three are owned by nobody; the source is open.
    if unsafe { libc::dup2(source.as_raw_fd(), number) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Give free memory inside the heap back.
pub(crate) fn trim_heap() {
    // SAFETY: takes free chunks only, under the allocator's own lock.
    unsafe { libc::malloc_trim(0) };
}

fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(code.unwrap_or(libc::EIO))
}
