//! What the proxy may ask of the kernel once it is nobody, and which files it may still open: those by which names are
//! resolved. Sockets into sandboxes, listeners among them, it has from the runtime as descriptors: it makes none.

use std::io;
use std::path::{Path, PathBuf};

use dsec_session::confined::{self, Calls, COMMON, COMMON_LOOKED_AT, INTERNET, LOOPS, SOCKETS};
use dsec_session::landlock::confine_files;
use libc::c_long;

/// Ledgers and journals of sandboxes, which it has as descriptors; bytes from socket to socket.
const MOVING: &[c_long] = &[libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_splice];

static CALLS: Calls = Calls {
    any: &[COMMON, SOCKETS, LOOPS, MOVING],
    looked_at: &[COMMON_LOOKED_AT, INTERNET],
};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// resolv.conf, hosts, nsswitch.conf; and where what `resolv.conf` may yet become a link to is kept.
const NAMES: &[&str] = &[
    "/etc",
    "/run/NetworkManager",
    "/run/connman",
    "/run/resolvconf",
    "/run/systemd/resolve",
];

/// Files are opened below these directories alone from now on: `false` where the kernel has no Landlock.
///
/// # Errors
/// The errno. The process has one thread, and is still root.
pub fn confine_to_names(faults: Option<&Path>) -> io::Result<bool> {
    let linked = directory_of(Path::new(RESOLV_CONF));
    let names = NAMES.iter().map(Path::new).chain(linked.as_deref());
    let names: Vec<&Path> = names.collect();
    let faults: Vec<&Path> = faults.into_iter().collect();
    confine_files(&names, &faults)
}

/// Where a file is in truth, but for the machine's root.
fn directory_of(file: &Path) -> Option<PathBuf> {
    let directory = file.canonicalize().ok()?.parent()?.to_owned();
    (directory != Path::new("/")).then_some(directory)
}

/// From now on this thread, and those that it starts, have these calls only. `faults`: and those of fault points.
///
/// # Errors
/// The errno; the thread must have given up new privileges before.
pub fn confine(faults: bool) -> io::Result<()> {
    confined::confine(&CALLS, faults)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
    use std::os::unix::fs::FileExt;

    use super::*;

    fn confined(body: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            // SAFETY: plain numbers; of this thread only.
            let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(given_up, 0);
            confine_to_names(None).expect("confined to files");
            confine(false).expect("confined to calls");
            body();
        });
        thread.join().expect("it holds");
    }

    /// Programs, processes, other namespaces, new code, local sockets, listeners of its own, and files but those of names
    /// are refused.
    #[test]
    fn refused() {
        confined(|| {
            let errno = |number, arguments: [usize; 3]| {
                let [a, b, c] = arguments;
                // SAFETY: calls that are refused before their arguments are looked at.
                match unsafe { libc::syscall(number, a, b, c, 0) } {
                    -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
                    _ => 0,
                }
            };
            for number in [
                libc::SYS_execve,
                libc::SYS_clone3,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_pidfd_getfd,
                libc::SYS_setns,
                libc::SYS_unshare,
                libc::SYS_mount,
                libc::SYS_bpf,
                libc::SYS_io_uring_setup,
                libc::SYS_listen,
                libc::SYS_socketpair,
                libc::SYS_unlinkat,
                libc::SYS_renameat,
                libc::SYS_ftruncate,
                libc::SYS_memfd_create,
                libc::SYS_kill,
                libc::SYS_setresuid,
            ] {
                assert_eq!(errno(number, [0; 3]), libc::ENOSYS, "{number}");
            }
            let exec = libc::PROT_EXEC as usize;
            for (number, arguments) in [
                (libc::SYS_socket, [libc::AF_UNIX as usize, 1, 0]),
                (libc::SYS_socket, [libc::AF_PACKET as usize, 3, 0]),
                (libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0]),
                (libc::SYS_mmap, [0, 4096, exec]),
                (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0]),
            ] {
                assert_eq!(errno(number, arguments), libc::EPERM, "{number}");
            }
        });
    }

    /// Files elsewhere are not opened where the kernel has Landlock, not even those that anybody may read.
    #[test]
    fn files() {
        let thread = std::thread::spawn(|| {
            // SAFETY: plain numbers; of this thread only.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            if !confine_to_names(None).expect("confined") {
                return;
            }
            for path in ["/proc/self/status", "/proc/version", "/usr/lib/os-release"] {
                let error = std::fs::read(path).expect_err("is refused");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{path}");
            }
        });
        thread.join().expect("it holds");
    }

    /// Connections either way, names, datagrams, routes, pipes between sockets, notes in an open file, threads are there.
    #[test]
    fn needed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let ledger = rustix::fs::memfd_create("ledger", flags).expect("made");
        confined(move || {
            let ledger = std::fs::File::from(ledger);
            ledger.write_all_at(b"noted", 7).expect("written");
            let mut noted = [0; 5];
            ledger.read_exact_at(&mut noted, 7).expect("read");
            let address = listener.local_addr().expect("an address");
            let mut near = TcpStream::connect(address).expect("connected");
            let (far, _) = listener.accept().expect("accepted");
            near.set_nodelay(true).expect("set");
            far.set_nonblocking(true).expect("set");
            near.write_all(b"bytes").expect("written");
            let mut pipe = crate::egress::pipes::take(&std::rc::Rc::default()).expect("a pipe");
            while pipe.fill(&far).is_err() {}
            while pipe.within > 0 {
                pipe.empty(&far).expect("given back");
            }
            let mut bytes = [0; 5];
            near.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"bytes");
            far.shutdown(std::net::Shutdown::Both).expect("shut down");
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
            socket.connect(address).expect("connected");
            let resolved = ("localhost", 80).to_socket_addrs().expect("resolved");
            assert!(resolved.count() > 0);
            assert_eq!(std::thread::spawn(|| 7).join().expect("ran"), 7);
            assert!(std::fs::read("/etc/hosts").is_ok());
        });
    }
}
