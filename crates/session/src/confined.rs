//! Which calls of the kernel a part of a node has: those that it names. All others do not exist for it.

use std::io;

use libc::c_long;

/// What an argument has to be, of which the lower 32 bits are looked at.
#[derive(Debug)]
pub enum Test {
    /// One of these.
    OneOf(&'static [u32]),
    /// With all of these bits.
    With(u32),
    /// With none of these bits.
    Without(u32),
}

/// (call, place of the argument, test).
pub type LookedAt = (c_long, u32, Test);

/// What is allowed.
#[derive(Debug)]
pub struct Calls {
    /// Whatever their arguments.
    pub any: &'static [&'static [c_long]],
    /// If an argument is as said.
    pub looked_at: &'static [&'static [LookedAt]],
}

/// What every program does: bytes of what is open, waiting, memory, its own threads, the time.
pub const COMMON: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
];

/// Sockets that there are, and new ones' connections; none that takes calls.
pub const SOCKETS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
];

/// What an event loop and a resolver of names take besides.
pub const LOOPS: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_dup,
    libc::SYS_dup3,
];

/// The former names of some of these, which C libraries still call.
#[cfg(target_arch = "x86_64")]
const FORMER: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const FORMER: &[c_long] = &[];

/// How a test's fault point happens.
const FAULTS: &[c_long] = &[libc::SYS_kill, libc::SYS_renameat];

const PR_SET_VMA: u32 = 0x5356_4d41;
const EXECUTABLE: u32 = libc::PROT_EXEC as u32;

/// What every program does with arguments that are looked at: memory that holds no code, threads, limits of itself.
pub const COMMON_LOOKED_AT: &[LookedAt] = &[
    // Threads only. `clone3` is left out: its flags cannot be looked at, and C libraries do without.
    (libc::SYS_clone, 0, Test::With(libc::CLONE_THREAD as u32)),
    (libc::SYS_mmap, 2, Test::Without(EXECUTABLE)),
    (libc::SYS_mprotect, 2, Test::Without(EXECUTABLE)),
    (
        libc::SYS_prctl,
        0,
        Test::OneOf(&[libc::PR_SET_NAME as u32, PR_SET_VMA]),
    ),
    (
        libc::SYS_ioctl,
        1,
        Test::OneOf(&[libc::FIONBIO as u32, libc::FIONREAD as u32]),
    ),
    (libc::SYS_prlimit64, 0, Test::OneOf(&[0])),
];

/// New sockets of the Internet, and netlink's, which name resolution asks about routes and which take a capability for
/// anything but looking. No local ones: what listens on those looks at modes.
pub const INTERNET: &[LookedAt] = &[(
    libc::SYS_socket,
    0,
    Test::OneOf(&[
        libc::AF_INET as u32,
        libc::AF_INET6 as u32,
        libc::AF_NETLINK as u32,
    ]),
)];

#[cfg(target_arch = "x86_64")]
const OURS: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const OURS: u32 = 0xC000_00B7;
const X32: u32 = 0x4000_0000;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips `count` steps unless it is so.
fn unless(code: u16, k: u32, count: usize) -> libc::sock_filter {
    libc::sock_filter {
        jf: count as u8,
        ..step(code, k)
    }
}

fn looked_at((number, argument, test): &LookedAt) -> Vec<libc::sock_filter> {
    let mut steps = vec![step(LOAD, 16 + 8 * argument)];
    match test {
        Test::OneOf(values) => {
            for value in *values {
                steps.extend([unless(EQUAL, *value, 1), step(RETURN, ALLOW)]);
            }
        }
        Test::With(bits) => {
            steps.push(step(AND, *bits));
            steps.extend([unless(EQUAL, *bits, 1), step(RETURN, ALLOW)]);
        }
        Test::Without(bits) => {
            steps.push(step(AND, *bits));
            steps.extend([unless(EQUAL, 0, 1), step(RETURN, ALLOW)]);
        }
    }
    steps.push(step(RETURN, REFUSED));
    steps.insert(0, unless(EQUAL, *number as u32, steps.len()));
    steps
}

fn program(calls: &Calls, faults: bool) -> Vec<libc::sock_filter> {
    let mut steps = vec![
        step(LOAD, 4),
        unless(EQUAL, OURS, 1),
        // Skips the next one.
        libc::sock_filter {
            jt: 1,
            jf: 1,
            ..step(EQUAL, 0)
        },
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, 0),
        unless(AT_LEAST, X32, 1),
        step(RETURN, ABSENT),
    ];
    let more = if faults { FAULTS } else { &[] };
    let lists = calls.any.iter().copied().chain([FORMER, more]);
    for number in lists.flatten() {
        steps.extend([unless(EQUAL, *number as u32, 1), step(RETURN, ALLOW)]);
    }
    for each in calls.looked_at.iter().copied().flatten() {
        steps.extend(looked_at(each));
    }
    steps.push(step(RETURN, ABSENT));
    steps
}

/// From now on this thread, and those that it starts, have these calls only. `faults`: and those of fault points.
///
/// # Errors
/// The errno; the thread must have given up new privileges before.
pub fn confine(calls: &Calls, faults: bool) -> io::Result<()> {
    let mut steps = program(calls, faults);
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: a program that outlives the call, with its length.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(calls: &'static Calls, number: c_long, argument: usize) -> i32 {
        let thread = std::thread::spawn(move || {
            // SAFETY: plain numbers; of this thread only.
            let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(given_up, 0);
            confine(calls, false).expect("confined");
            // SAFETY: a call that does nothing with these arguments, or is refused.
            match unsafe { libc::syscall(number, argument, 0, 0, 0) } {
                -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
                _ => 0,
            }
        });
        thread.join().expect("ran")
    }

    /// What is named is there, what is looked at by its argument, what is not named does not exist.
    #[test]
    fn named_alone() {
        static CALLS: Calls = Calls {
            any: &[COMMON],
            looked_at: &[
                COMMON_LOOKED_AT,
                &[
                    (libc::SYS_umask, 0, Test::OneOf(&[0o22, 0o77])),
                    (libc::SYS_dup, 0, Test::With(0x100)),
                ],
            ],
        };
        assert_eq!(allowed(&CALLS, libc::SYS_getpid, 0), 0);
        assert_eq!(allowed(&CALLS, libc::SYS_umask, 0o22), 0);
        assert_eq!(allowed(&CALLS, libc::SYS_umask, 0), libc::EPERM);
        assert_eq!(allowed(&CALLS, libc::SYS_dup, 0x80), libc::EPERM);
        assert_eq!(allowed(&CALLS, libc::SYS_dup, 0xFFFF_F100), libc::EBADF);
        for absent in [libc::SYS_getppid, libc::SYS_kill, 9999] {
            assert_eq!(allowed(&CALLS, absent, 0), libc::ENOSYS, "{absent}");
        }
    }
}
