//! What the fetcher may ask of the kernel once it is nobody: files, sockets of the Internet, memory that holds no code,
//! threads. All other calls do not exist for it.

use std::io;

use libc::c_long;

/// Allowed, whatever their arguments.
const ALLOWED: &[c_long] = &[
    // Files and descriptors.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    // Sockets that there are.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    // Memory and threads.
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
    // What it is told of itself and of the time.
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

/// The former names of some of these, which C libraries still call.
#[cfg(target_arch = "x86_64")]
const FORMER: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
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

/// What an argument has to be.
enum Test {
    /// One of these.
    OneOf(&'static [u32]),
    /// With all of these bits.
    With(u32),
    /// With none of these bits.
    Without(u32),
}

/// (call, place of the argument, test).
const LOOKED_AT: &[(c_long, u32, Test)] = &[
    (
        libc::SYS_socket,
        0,
        Test::OneOf(&[
            libc::AF_UNIX as u32,
            libc::AF_INET as u32,
            libc::AF_INET6 as u32,
            libc::AF_NETLINK as u32,
        ]),
    ),
    (
        libc::SYS_socketpair,
        0,
        Test::OneOf(&[libc::AF_UNIX as u32]),
    ),
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
    // Reading limits, of itself.
    (libc::SYS_prlimit64, 0, Test::OneOf(&[0])),
];

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

fn looked_at(number: c_long, argument: u32, test: &Test) -> Vec<libc::sock_filter> {
    // The lower half of the argument: what is looked at has 32 bits.
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
    steps.insert(0, unless(EQUAL, number as u32, steps.len()));
    steps
}

fn program(faults: bool) -> Vec<libc::sock_filter> {
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
    for number in ALLOWED.iter().chain(FORMER).chain(more) {
        steps.extend([unless(EQUAL, *number as u32, 1), step(RETURN, ALLOW)]);
    }
    for (number, argument, test) in LOOKED_AT {
        steps.extend(looked_at(*number, *argument, test));
    }
    steps.push(step(RETURN, ABSENT));
    steps
}

/// From now on this thread, and those that it starts, have these calls only. `faults`: and those of fault points.
///
/// # Errors
/// The errno; the thread must have given up new privileges before.
pub fn confine(faults: bool) -> io::Result<()> {
    let mut steps = program(faults);
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
    use std::net::{TcpListener, TcpStream, ToSocketAddrs};

    use super::*;

    /// What a confined thread gets for a call: an errno, or none.
    fn errno(number: c_long, arguments: [usize; 4]) -> i32 {
        let [a, b, c, d] = arguments;
        // SAFETY: calls that are refused before their arguments are looked at, or are harmless.
        let done = unsafe { libc::syscall(number, a, b, c, d) };
        match done {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
            _ => 0,
        }
    }

    fn confined(faults: bool, body: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            // SAFETY: plain numbers; of this thread only.
            let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(given_up, 0);
            confine(faults).expect("confined");
            body();
        });
        thread.join().expect("it holds");
    }

    /// Programs, processes, other processes' memory, mounts, namespaces, modules, odd sockets and new code are refused.
    #[test]
    fn refused() {
        confined(false, || {
            for number in [
                libc::SYS_execve,
                libc::SYS_execveat,
                libc::SYS_clone3,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_mount,
                libc::SYS_fsopen,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_bpf,
                libc::SYS_io_uring_setup,
                libc::SYS_userfaultfd,
                libc::SYS_memfd_create,
                libc::SYS_keyctl,
                libc::SYS_setresuid,
                libc::SYS_kill,
                libc::SYS_renameat,
                libc::SYS_unlinkat,
                libc::SYS_fanotify_init,
                9999,
            ] {
                assert_eq!(errno(number, [0; 4]), libc::ENOSYS, "{number}");
            }
            let exec = libc::PROT_EXEC as usize | 1;
            for (number, arguments) in [
                (libc::SYS_socket, [libc::AF_PACKET as usize, 1, 0, 0]),
                (libc::SYS_socket, [libc::AF_VSOCK as usize, 1, 0, 0]),
                (libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0]),
                (libc::SYS_mmap, [0, 4096, exec, 0x22]),
                (libc::SYS_mprotect, [0, 0, exec, 0]),
                (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0]),
                (libc::SYS_ioctl, [0, 0x5412, 0, 0]),
                (libc::SYS_prlimit64, [1, 0, 0, 0]),
            ] {
                assert_eq!(errno(number, arguments), libc::EPERM, "{number}");
            }
        });
    }

    /// Files, threads, names of hosts and connections are not.
    #[test]
    fn needed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        confined(false, move || {
            assert!(std::fs::read("/proc/self/status").is_ok());
            assert_eq!(std::thread::spawn(|| 7).join().expect("ran"), 7);
            let port = listener.local_addr().expect("an address").port();
            let addresses = ("localhost", port).to_socket_addrs().expect("resolved");
            assert!(addresses.count() > 0);
            let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
            stream.set_nonblocking(true).expect("set");
            assert_eq!(errno(libc::SYS_getrandom, [0, 0, 0, 0]), 0);
        });
    }

    /// Where fault points are on, they can happen.
    #[test]
    fn faults() {
        confined(true, || {
            assert_eq!(errno(libc::SYS_kill, [0, 64 + 1000, 0, 0]), libc::EINVAL);
        });
    }
}
