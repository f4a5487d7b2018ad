//! Sockets in a sandbox's network namespace: a socket stays in the namespace in which it was made.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use dsec_proto::proxy::Refused;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::kernel::sys::{check, owned};

/// Endpoint N has the address 127.77.0.N.
const PREFIX: [u8; 3] = [127, 77, 0];
const PORT: u16 = 80;
const BACKLOG: libc::c_int = 512;
/// A program that does not accept is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does something in another network namespace.
fn inside<T>(namespace: &OwnedFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let enter = |fd: i32| {
        // SAFETY: a plain call on a descriptor that is borrowed; it only changes the calling thread.
        check(libc::c_long::from(unsafe {
            libc::setns(fd, libc::CLONE_NEWNET)
        }))
    };
    let home = File::open("/proc/thread-self/ns/net")?;
    enter(namespace.as_raw_fd())?;
    let done = work();
    if enter(home.as_raw_fd()).is_err() {
        // This thread would do its next work in a sandbox's network; a successor takes everything up.
        std::process::abort();
    }
    done
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain numbers.
    owned(libc::c_long::from(unsafe { libc::socket(family, kind, 0) }))
}

/// The listeners of `count` endpoints.
///
/// # Errors
/// The errno.
pub fn listeners(namespace: &OwnedFd, count: u8) -> io::Result<Vec<OwnedFd>> {
    inside(namespace, || (1..=count).map(listener).collect())
}

fn listener(number: u8) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_INET)?;
    let [one, two, three] = PREFIX;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: PORT.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes([one, two, three, number]),
        },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: an address that outlives the call, with its size, then plain numbers.
    unsafe {
        check(libc::c_long::from(libc::bind(
            fd,
            (&raw const address).cast(),
            length,
        )))?;
        check(libc::c_long::from(libc::listen(fd, BACKLOG)))?;
    }
    Ok(socket)
}

/// Two sockets that are not connected yet, IPv4 and IPv6.
///
/// # Errors
/// The errno.
pub fn pair(namespace: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    inside(namespace, || {
        Ok((socket(libc::AF_INET)?, socket(libc::AF_INET6)?))
    })
}

/// Connects one of them to a port of its namespace's own.
///
/// # Errors
/// `Nobody` or `Late`.
pub async fn connect(four: OwnedFd, six: OwnedFd, port: u16) -> Result<OwnedFd, Refused> {
    let tried = [
        (four, SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        (six, SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
    ];
    for (socket, address) in tried {
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        match timeout(PATIENCE, socket.connect(address)).await {
            Ok(Ok(stream)) => {
                let stream = stream.into_std().map_err(|_| Refused::Node)?;
                return Ok(stream.into());
            }
            Ok(Err(_)) => {}
            Err(_) => return Err(Refused::Late),
        }
    }
    Err(Refused::Nobody)
}
