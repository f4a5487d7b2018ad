//! System calls that return a number, a descriptor or an errno.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// The result of a call that returns -1 for an error.
///
/// # Errors
/// The errno.
pub fn check(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// The same for a call that returns a new descriptor.
///
/// # Errors
/// The errno.
pub fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(value)?;
    // SAFETY: the kernel has just given us this descriptor and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A string for the kernel.
///
/// # Errors
/// EINVAL when it has a NUL inside.
pub fn c(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Nanoseconds of a clock.
#[must_use]
pub fn clock(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result, and these clocks always exist.
    unsafe { libc::clock_gettime(id, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_BOOTTIME, nanoseconds: the clock of every deadline.
#[must_use]
pub fn boottime() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

/// Unix time in seconds of a moment of CLOCK_BOOTTIME.
#[must_use]
pub fn unix_time(boot_ns: u64) -> f64 {
    // Asked once, so that the same moment is always told as the same time.
    static BOOTED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let booted = BOOTED.get_or_init(|| clock(libc::CLOCK_REALTIME).saturating_sub(boottime()));
    (booted + boot_ns) as f64 / 1e9
}

/// A pipe, close-on-exec: read end and write end.
///
/// # Errors
/// EMFILE and its kin.
pub fn pipe(flags: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two numbers.
    check(libc::c_long::from(unsafe {
        libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags)
    }))?;
    // SAFETY: both are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Two ends of a packet connection that never wait.
///
/// # Errors
/// The errno.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` has room for the two numbers.
    check(libc::c_long::from(unsafe {
        libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())
    }))?;
    // SAFETY: both are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Sets O_NONBLOCK on the open file description of a pipe or socket, which have no other flags to be kept.
///
/// # Errors
/// The errno.
pub fn nonblocking(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: a plain fcntl call on a descriptor that is borrowed for the time of the call.
    let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    check(libc::c_long::from(set)).map(drop)
}

/// How many processors this process, and so what it starts, may run on.
///
/// # Errors
/// The errno.
pub fn usable_processors() -> io::Result<u32> {
    let mut mask = [0_u64; 128];
    // SAFETY: the mask has room for as many bytes as are said.
    check(unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    })?;
    Ok(mask.iter().map(|word| word.count_ones()).sum())
}

/// A control file of the kernel, by one read: shorter than 4 KiB, and given whole or not at all.
///
/// # Errors
/// The errno.
pub fn small_file(path: &Path) -> io::Result<String> {
    let mut buffer = [0; 4096];
    let length = io::Read::read(&mut std::fs::File::open(path)?, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Gives an open file to a host user and group.
///
/// # Errors
/// The errno.
pub fn chown(fd: &impl AsRawFd, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: a plain call on a borrowed descriptor.
    check(libc::c_long::from(unsafe {
        libc::fchown(fd.as_raw_fd(), uid, gid)
    }))?;
    Ok(())
}

/// Moves bytes from a pipe into a file at `offset`, which it advances. 0 is the end of the pipe.
///
/// # Errors
/// EAGAIN when the pipe is empty.
pub fn splice_to_file(
    pipe: &impl AsRawFd,
    file: &impl AsRawFd,
    offset: &mut u64,
    most: usize,
) -> io::Result<usize> {
    let mut at = *offset as libc::loff_t;
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: both descriptors are borrowed, `at` outlives the call, a pipe takes no offset.
    let moved = unsafe {
        libc::splice(
            pipe.as_raw_fd(),
            std::ptr::null_mut(),
            file.as_raw_fd(),
            &mut at,
            most,
            flags,
        )
    };
    let moved = check(moved as libc::c_long)? as usize;
    *offset = at as u64;
    Ok(moved)
}

/// Memory as a file, empty.
///
/// # Errors
/// The errno.
pub fn memory(name: &str) -> io::Result<OwnedFd> {
    create_memory(name, libc::MFD_NOEXEC_SEAL)
}

fn create_memory(name: &str, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let name = c(name)?;
    // SAFETY: `name` is a valid string for the time of the call.
    owned(unsafe {
        libc::c_long::from(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags))
    })
}

/// Moves bytes from a file's position on into a pipe or terminal, as many as it takes now. The position moves along in the
/// same call: no signal comes between.
///
/// # Errors
/// EAGAIN when there is no room, EPIPE when nobody reads any more.
pub fn send_file(to: &impl AsRawFd, from: &impl AsRawFd, most: usize) -> io::Result<usize> {
    // SAFETY: both descriptors are borrowed; without an offset the file's own position counts.
    let moved =
        unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), std::ptr::null_mut(), most) };
    Ok(check(moved as libc::c_long)? as usize)
}

/// Moves bytes of a file from `offset` on, which it advances, into a socket, as many as it takes now. 0: the file ends there.
///
/// # Errors
/// EAGAIN when there is no room, EPIPE when nobody reads any more.
pub fn send_file_at(
    to: &impl AsRawFd,
    from: &impl AsRawFd,
    offset: &mut u64,
    most: usize,
) -> io::Result<usize> {
    let mut at = *offset as libc::off_t;
    // SAFETY: both descriptors are borrowed, `at` outlives the call.
    let moved = unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), &mut at, most) };
    let moved = check(moved as libc::c_long)? as usize;
    *offset = at as u64;
    Ok(moved)
}

/// Gives a socket room for so many bytes that are not yet read, beyond the node's limit where that is allowed. Without it
/// all works too.
pub fn send_room(socket: &impl AsRawFd, bytes: libc::c_int) {
    for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        // SAFETY: the option takes one int.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                std::ptr::from_ref(&bytes).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if set == 0 {
            return;
        }
    }
}

/// Gives a pipe room for so many bytes. Memory is taken only for what is in it.
///
/// # Errors
/// EPERM above what the node's user may have, EBUSY when more is in it.
pub fn widen_pipe(pipe: &impl AsRawFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: numbers only.
    let set = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
    check(libc::c_long::from(set)).map(drop)
}

/// Frees a range of a file; its length stays.
pub fn punch(file: &impl AsRawFd, start: u64, end: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on a borrowed descriptor. A refusal costs memory, and nothing else.
    unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            start as libc::off_t,
            (end - start) as libc::off_t,
        )
    };
}

/// Moves bytes of a terminal into a pipe. They are in one or in the other at any moment, never only in this process.
///
/// # Errors
/// EAGAIN when there are none or the pipe is full, EIO once nobody has the terminal's other end open.
pub fn splice_to_pipe(from: &impl AsRawFd, pipe: &impl AsRawFd, most: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: both descriptors are borrowed; neither takes an offset.
    let moved = unsafe {
        libc::splice(
            from.as_raw_fd(),
            std::ptr::null_mut(),
            pipe.as_raw_fd(),
            std::ptr::null_mut(),
            most,
            flags,
        )
    };
    Ok(check(moved as libc::c_long)? as usize)
}

/// Sealed memory with these bytes, executable when asked for.
///
/// # Errors
/// The errno.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(create_memory(name, libc::MFD_ALLOW_SEALING)?);
    io::Write::write_all(&mut file, bytes)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: a plain fcntl on our own descriptor.
    check(libc::c_long::from(unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals)
    }))?;
    Ok(file.into())
}

/// Soft and hard limit of open descriptors.
#[must_use]
pub fn descriptor_limit() -> (u64, u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

/// Raises the soft limit of open descriptors to the hard one.
pub fn raise_descriptor_limit() {
    let (_, hard) = descriptor_limit();
    let limit = libc::rlimit {
        rlim_cur: hard,
        rlim_max: hard,
    };
    // SAFETY: a valid structure; a refusal leaves the limit as it was.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}
