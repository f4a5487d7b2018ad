//! System calls that neither rustix nor libc wraps, and the ones that must act on this thread only.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// Be born in the cgroup given (libc's constant is cut to 32 bits).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// `close_range` marks instead of closing.
pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

fn outcome(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        let errno = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(result)
}

/// What a clone returned.
pub(crate) enum Cloned {
    /// We are the child.
    Child,
    /// We are the parent of this one.
    Parent {
        /// Its PID in our namespace.
        pid: i32,
        /// Its pidfd.
        pidfd: OwnedFd,
    },
}

/// `clone3` as a fork (no shared memory), with a pidfd.
///
/// The caller must be single-threaded, so that the child finds every lock free.
pub(crate) fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data, all zero is a valid value of it.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory.as_raw_fd() as u64;
    }
    // SAFETY: args lives across the call and has the size given; without CLONE_VM the child has its own copy
    // of all memory, and the stack pointer 0 means a fork.
    let result = outcome(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_mut(&mut args),
            size_of::<libc::clone_args>(),
        )
    })?;
    if result == 0 {
        return Ok(Cloned::Child);
    }
    Ok(Cloned::Parent {
        pid: result as i32,
        // SAFETY: with CLONE_PIDFD the kernel stored a descriptor that is ours alone.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    })
}

/// `close_range`, or with [`CLOSE_RANGE_CLOEXEC`] its marking.
pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: numbers only. The caller owns the process: it is the forked child, which uses none of the
    // descriptors in the range afterwards.
    outcome(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Make `target` a copy of `source`, kept over an exec.
pub(crate) fn dup2(source: BorrowedFd<'_>, target: RawFd) -> Result<(), Errno> {
    // SAFETY: numbers only; the child owns its table and has moved every descriptor it needs out of the way.
    outcome(unsafe { libc::syscall(libc::SYS_dup3, source.as_raw_fd(), target, 0) }).map(drop)
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Set attributes of a mount, or with `recursive` of the whole tree.
pub(crate) fn mount_setattr(tree: BorrowedFd<'_>, set: u64, recursive: bool) -> Result<(), Errno> {
    let below = if recursive { libc::AT_RECURSIVE } else { 0 };
    let attributes = MountAttr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a constant C string and the structure lives across the call.
    outcome(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | below,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Install a seccomp filter for this process; with `listen`, its listener is returned.
pub(crate) fn seccomp(program: &[u8], listen: bool) -> Result<Option<OwnedFd>, Errno> {
    const FILTER_BYTES: usize = size_of::<libc::sock_filter>();
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    let filters: Vec<libc::sock_filter> = program
        .chunks_exact(FILTER_BYTES)
        .map(|part| libc::sock_filter {
            code: u16::from_ne_bytes([part[0], part[1]]),
            jt: part[2],
            jf: part[3],
            k: u32::from_ne_bytes([part[4], part[5], part[6], part[7]]),
        })
        .collect();
    let length = u16::try_from(filters.len()).map_err(|_| Errno::INVAL)?;
    let description = libc::sock_fprog {
        len: length,
        filter: filters.as_ptr().cast_mut(),
    };
    let flags = if listen {
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
    } else {
        0
    };
    // SAFETY: the description points at `length` filters which live across the call; the kernel copies them.
    let fd = outcome(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&description),
        )
    })?;
    // SAFETY: with that flag the kernel made a descriptor that is ours alone, and closes at an exec.
    Ok(listen.then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

/// Set a resource limit of this process.
pub(crate) fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the structure lives across the call; the old value is not asked for.
    outcome(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            std::ptr::from_ref(&limit),
            std::ptr::null_mut::<libc::rlimit64>(),
        )
    })
    .map(drop)
}

/// Make reads and writes wait, or not, for everybody who has this open file.
pub(crate) fn blocking(fd: &OwnedFd, wait: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(rustix::fs::OFlags::NONBLOCK, !wait);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// Let every signal through again.
pub(crate) fn unblock_signals() -> Result<(), Errno> {
    const KERNEL_SET_BYTES: usize = 8;
    let none = 0_u64;
    // SAFETY: the kernel's signal set is 8 bytes, which live across the call.
    outcome(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            std::ptr::from_ref(&none),
            std::ptr::null_mut::<u64>(),
            KERNEL_SET_BYTES,
        )
    })
    .map(drop)
}

/// Set what a signal does to its default, or have it ignored.
pub(crate) fn set_disposition(signal: libc::c_int, ignore: bool) {
    let to = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither value is a function; a number that is no signal changes nothing.
    unsafe { libc::signal(signal, to) };
}

/// Replace this process by the program at `path`, or by the open file when `file` is given. Returns only on
/// failure.
pub(crate) fn execute(
    file: Option<BorrowedFd<'_>>,
    path: &CStr,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Errno {
    let (directory, flags) = match file {
        Some(file) => (file.as_raw_fd(), libc::AT_EMPTY_PATH),
        None => (libc::AT_FDCWD, 0),
    };
    // SAFETY: both arrays end with a null pointer and point at C strings that the caller keeps alive.
    let result = outcome(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            directory,
            path.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            flags,
        )
    });
    result.err().unwrap_or(Errno::IO)
}

/// Words of a mask of processors: as many as any kernel is built for.
const MASK_WORDS: usize = 128;

/// Processors that this thread may run on, one bit each.
pub(crate) fn affinity() -> Result<Vec<u64>, Errno> {
    let mut mask = vec![0_u64; MASK_WORDS];
    // SAFETY: the mask has room for as many bytes as are said.
    let written = outcome(unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            size_of_val(mask.as_slice()),
            mask.as_mut_ptr(),
        )
    })?;
    mask.truncate(written as usize / size_of::<u64>());
    Ok(mask)
}

/// Run on these alone.
pub(crate) fn set_affinity(mask: &[u64]) -> Result<(), Errno> {
    // SAFETY: the mask has as many bytes as are said.
    let set = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(mask),
            mask.as_ptr(),
        )
    };
    outcome(set).map(drop)
}

/// The processor that this thread runs on now.
pub(crate) fn processor() -> Result<u32, Errno> {
    // SAFETY: a plain call.
    outcome(libc::c_long::from(unsafe { libc::sched_getcpu() })).map(|number| number as u32)
}
