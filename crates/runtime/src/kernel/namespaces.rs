//! Namespaces made outside of any sandbox: network namespaces of the initial user namespace with their /sys,
//! and user namespaces that only serve as ID maps.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use super::mounts::{self, attr, Configuring};
use super::sys::{c, check, owned};

/// Gives the calling thread a file-system view and a mount namespace of its own, nothing shared.
///
/// # Errors
/// The errno.
pub fn own_mount_namespace() -> io::Result<OwnedFd> {
    unshare(libc::CLONE_FS | libc::CLONE_NEWNS)?;
    mounts::make_private()?;
    Ok(File::open("/proc/thread-self/ns/mnt")?.into())
}

/// Moves the calling thread into a mount namespace.
///
/// # Errors
/// The errno.
pub fn enter_mount_namespace(namespace: &OwnedFd) -> io::Result<()> {
    unshare(libc::CLONE_FS)?;
    // SAFETY: a plain call on a borrowed descriptor.
    check(libc::c_long::from(unsafe {
        libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS)
    }))?;
    Ok(())
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers; it only changes the calling thread.
    check(libc::c_long::from(unsafe { libc::unshare(flags) }))?;
    Ok(())
}

/// A network namespace with `lo` up in which low ports are free to all, and a read-only /sys of it.
pub struct Network {
    /// The namespace.
    pub namespace: OwnedFd,
    /// A detached mount.
    pub sysfs: OwnedFd,
    /// Its count of sockets, read again and again.
    sockets: File,
}

impl Network {
    /// Makes one. The calling thread is back in its own network namespace afterwards.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn new() -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        unshare(libc::CLONE_NEWNET)?;
        let made = Self::here();
        // SAFETY: a plain call on our own descriptor.
        check(libc::c_long::from(unsafe {
            libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET)
        }))?;
        made
    }

    fn here() -> io::Result<Self> {
        loopback_up()?;
        std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
        let attributes = attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC;
        let sysfs = Configuring::new("sysfs")?.mount(attributes)?;
        Ok(Self {
            namespace: File::open("/proc/thread-self/ns/net")?.into(),
            sysfs,
            sockets: File::open("/proc/thread-self/net/sockstat")?,
        })
    }

    /// Whether no socket is left in it, of whatever family, nor a connection in TIME_WAIT.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let mut text = [0; 1024];
        let length = self.sockets.read_at(&mut text, 0).unwrap_or(0);
        is_unused(&String::from_utf8_lossy(&text[..length]))
    }
}

fn is_unused(sockstat: &str) -> bool {
    let after = |line: &str, key: &str| {
        let mut words = line
            .split_ascii_whitespace()
            .skip_while(|word| *word != key);
        words.nth(1).map(str::to_owned)
    };
    let of = |protocol: &str, key: &str| {
        let line = sockstat.lines().find(|line| line.starts_with(protocol))?;
        after(line, key)
    };
    of("sockets:", "used").as_deref() == Some("0") && of("TCP:", "tw").as_deref() == Some("0")
}

fn loopback_up() -> io::Result<()> {
    // SAFETY: plain numbers.
    let socket = owned(libc::c_long::from(unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
    }))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is what SIOCSIFFLAGS reads.
    check(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request)
    }))?;
    Ok(())
}

/// A user namespace in which 0 to `count` stand for the host's IDs from `start`, for ID-mapped mounts.
///
/// # Errors
/// The errno of the step that failed.
pub fn id_map(start: u32, count: u32) -> io::Result<OwnedFd> {
    let (reader, writer) = super::sys::pipe(0)?;
    let child = Parked::clone(reader.as_raw_fd(), writer.as_raw_fd())?;
    let map = format!("0 {start} {count}");
    let of = |file: &str| format!("/proc/{}/{file}", child.0);
    std::fs::write(of("uid_map"), &map)?;
    std::fs::write(of("gid_map"), &map)?;
    let namespace = File::open(of("ns/user"))?;
    drop(writer);
    Ok(namespace.into())
}

/// A forked child that waits until it is dropped.
struct Parked(libc::pid_t);

impl Parked {
    fn clone(reader: i32, writer: i32) -> io::Result<Self> {
        let flags = (libc::CLONE_NEWUSER | libc::SIGCHLD) as libc::c_long;
        // SAFETY: as fork; the child only makes the three calls below, all of them allowed after a fork of a
        // program with threads, and never returns.
        let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
        if pid == 0 {
            let mut byte = 0u8;
            // SAFETY: descriptors of our own table and a buffer of one byte.
            unsafe {
                libc::close(writer);
                libc::read(reader, (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        Ok(Self(pid as libc::pid_t))
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for, so that its number cannot be somebody else's.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A small filesystem of a sandbox's own, which the node writes to and it does not.
pub struct Small {
    /// All of it, writable.
    whole: OwnedFd,
    /// Its /dev: the usual nodes, links and mount points, owned by its root, read-only.
    pub devices: OwnedFd,
}

impl Small {
    /// Makes one, with its devices.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn new(idmap: &OwnedFd) -> io::Result<Self> {
        let whole = Configuring::new("tmpfs")?
            .set("mode", "755")?
            .set("size", "4194304")?
            .set("nr_inodes", "48")?
            .mount(attr::NOSUID | attr::NOEXEC | attr::NOATIME)?;
        directory(whole.as_raw_fd(), "files")?;
        let devices = devices(&whole, idmap)?;
        Ok(Self { whole, devices })
    }

    /// Puts a file there, anew; its mount is read-only.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}/files/{name}", self.whole.as_raw_fd());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&path)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o444))?;
        file.write_all(text.as_bytes())
    }

    /// A detached mount of one file.
    ///
    /// # Errors
    /// The errno.
    pub fn file(&self, name: &str) -> io::Result<OwnedFd> {
        let path = format!("files/{name}");
        let copy = mounts::clone_at(self.whole.as_raw_fd(), Path::new(&path), 0)?;
        mounts::set_attributes(&copy, attr::RDONLY | attr::NODEV, None)?;
        Ok(copy)
    }
}

fn devices(whole: &OwnedFd, idmap: &OwnedFd) -> io::Result<OwnedFd> {
    directory(whole.as_raw_fd(), "dev")?;
    let mount = mounts::clone_at(whole.as_raw_fd(), Path::new("dev"), 0)?;
    let at = mount.as_raw_fd();
    for (name, minor) in [
        ("null", 3),
        ("zero", 5),
        ("full", 7),
        ("random", 8),
        ("urandom", 9),
    ] {
        device(at, name, libc::makedev(1, minor))?;
    }
    device(at, "tty", libc::makedev(5, 0))?;
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, to) in links {
        let (name, to) = (c(name)?, c(to)?);
        // SAFETY: valid strings, a borrowed descriptor.
        check(libc::c_long::from(unsafe {
            libc::symlinkat(to.as_ptr(), at, name.as_ptr())
        }))?;
    }
    for name in ["pts", "shm", "mqueue"] {
        directory(at, name)?;
    }
    mounts::set_attributes(&mount, attr::RDONLY, Some(idmap))?;
    Ok(mount)
}

fn directory(at: i32, name: &str) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: a valid string, a borrowed descriptor.
    check(libc::c_long::from(unsafe {
        libc::mkdirat(at, name.as_ptr(), 0o755)
    }))?;
    Ok(())
}

fn device(at: i32, name: &str, number: libc::dev_t) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: valid strings, a borrowed descriptor. The mode is set again because mknod obeys the umask.
    unsafe {
        check(libc::c_long::from(libc::mknodat(
            at,
            name.as_ptr(),
            libc::S_IFCHR | 0o666,
            number,
        )))?;
        check(libc::c_long::from(libc::fchmodat(
            at,
            name.as_ptr(),
            0o666,
            0,
        )))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{is_unused, Network};

    /// Only a namespace without sockets and without lingering connections is used again; an unreadable count is not.
    #[test]
    fn unused_is_proven() {
        let text = |used: u32, waiting: u32| {
            format!("sockets: used {used}\nTCP: inuse 0 orphan 3 tw {waiting} alloc 9 mem 0\nUDP: inuse 0 mem 0\n")
        };
        assert!(is_unused(&text(0, 0)));
        assert!(!is_unused(&text(1, 0)));
        assert!(!is_unused(&text(0, 2)));
        assert!(!is_unused("") && !is_unused("sockets: used 0\n"));
    }

    /// The kernel counts per namespace: a fresh one is unused whatever the rest of the machine does.
    #[test]
    fn a_fresh_namespace_is_unused() {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let network = Network::new().expect("root makes a network namespace");
        assert!(network.is_unused());
    }
}
