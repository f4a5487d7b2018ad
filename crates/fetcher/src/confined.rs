//! What the fetcher may ask of the kernel once it is nobody: files, sockets of the Internet, memory that holds no code,
//! threads. All other calls do not exist for it.

use std::io;

use dsec_session::confined::{self, Calls, COMMON, COMMON_LOOKED_AT, INTERNET, LOOPS, SOCKETS};
use libc::c_long;

/// Blobs of stores, data of layers.
const FILES: &[c_long] = &[
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_openat2,
    libc::SYS_close_range,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

static CALLS: Calls = Calls {
    any: &[COMMON, SOCKETS, LOOPS, FILES],
    looked_at: &[COMMON_LOOKED_AT, INTERNET],
};

/// From now on this thread, and those that it starts, have these calls only. `faults`: and those of fault points.
///
/// # Errors
/// The errno; the thread must have given up new privileges before.
pub fn confine(faults: bool) -> io::Result<()> {
    confined::confine(&CALLS, faults)
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
                libc::SYS_listen,
                libc::SYS_socketpair,
                9999,
            ] {
                assert_eq!(errno(number, [0; 4]), libc::ENOSYS, "{number}");
            }
            let exec = libc::PROT_EXEC as usize | 1;
            for (number, arguments) in [
                (libc::SYS_socket, [libc::AF_PACKET as usize, 1, 0, 0]),
                (libc::SYS_socket, [libc::AF_UNIX as usize, 1, 0, 0]),
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
