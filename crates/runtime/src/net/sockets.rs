//! Sockets in a sandbox's network namespace: a socket stays in the namespace in which it was made.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use dsec_proto::proxy::Refused;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::kernel::netlink;
use crate::kernel::sys::{check, owned};

/// Endpoint N has the address 127.77.0.N.
const PREFIX: [u8; 3] = [127, 77, 0];
const PORT: u16 = 80;
/// Where all other connections of a sandbox with a network end, at its loopback addresses. Above the ports that the kernel
/// chooses. From the first policy on a program cannot have this one; where a program has it by then, there is no network.
pub const EGRESS_PORT: u16 = 61953;
/// What a sandbox with a network takes for its own address: nobody's (RFC 5737).
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
const BACKLOG: libc::c_int = 512;
/// A program that does not accept is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does something in another network namespace.
///
/// # Errors
/// The errno.
pub fn inside<T>(namespace: &OwnedFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
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

/// Leads everything that a sandbox sends to the node: the listeners of TCP and the sockets of the resolver, each for IPv4
/// and IPv6. May be repeated, once the former sockets are gone.
///
/// # Errors
/// The errno.
pub fn egress(namespace: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    inside(namespace, || {
        let mut sockets: Vec<OwnedFd> = Vec::new();
        for address in LOOPBACK {
            let listener = TcpListener::bind((address, EGRESS_PORT))?;
            // SAFETY: a descriptor of ours and a plain number.
            check(libc::c_long::from(unsafe {
                libc::listen(listener.as_raw_fd(), BACKLOG)
            }))?;
            sockets.push(listener.into());
        }
        for address in LOOPBACK {
            sockets.push(UdpSocket::bind((address, EGRESS_PORT))?.into());
        }
        netlink::redirect_to(EGRESS_PORT, None)?;
        netlink::route_all_to_loopback(OWN)?;
        Ok(sockets)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespaces::Network;
    use std::net::TcpStream;

    fn dialled(stream: &TcpStream, level: libc::c_int) -> Option<Vec<u8>> {
        let mut address = [0u8; 28];
        let mut length = address.len() as libc::socklen_t;
        // SAFETY: a place with its size; 80 is SO_ORIGINAL_DST of both families.
        let got = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                level,
                80,
                address.as_mut_ptr().cast(),
                &mut length,
            )
        };
        (got == 0).then(|| address[2..24].to_vec())
    }

    /// Connections that the kernel remembers of the thread's namespace.
    fn tracked() -> io::Result<u32> {
        let text = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// In a namespace with nothing but `lo`, a connection to any address of either family arrives at the node's listeners,
    /// which learn what was dialled; a question to any name server arrives at the resolver's socket and its answer comes
    /// from whom was asked; other datagrams do not leave their socket, and the kernel keeps nothing of them; loopback and all
    /// other ports are the program's own. Made twice it is the same.
    #[test]
    fn everything_ends_at_the_node() {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let network = Network::new().expect("root makes a network namespace");
        drop(egress(&network.namespace).expect("is made"));
        let mut held = egress(&network.namespace).expect("is made again");
        let (_, udp4) = (held.pop(), held.remove(2));
        let listeners: Vec<_> = held.into_iter().map(TcpListener::from).collect();
        inside(&network.namespace, || {
            let four = TcpStream::connect(("203.0.113.9", 443))?;
            let (accepted, _) = listeners[0].accept()?;
            let seen = dialled(&accepted, libc::SOL_IP).expect("is known");
            assert_eq!(seen[..6], [1, 187, 203, 0, 113, 9]);
            drop(four);
            let six: Ipv6Addr = "2001:db8::9".parse().expect("is an address");
            let _six = TcpStream::connect((six, 80))?;
            let (accepted, _) = listeners[1].accept()?;
            let seen = dialled(&accepted, libc::SOL_IPV6).expect("is known");
            assert_eq!(
                (&seen[..2], &seen[6..22]),
                (&[0, 80][..], &six.octets()[..])
            );

            let resolver = UdpSocket::from(udp4);
            let asking = UdpSocket::bind(("0.0.0.0", 0))?;
            asking.connect(("198.51.100.53", 53))?;
            asking.send(b"?")?;
            let mut byte = [0];
            let (_, from) = resolver.recv_from(&mut byte)?;
            resolver.send_to(b"!", from)?;
            asking.set_read_timeout(Some(Duration::from_secs(5)))?;
            assert_eq!((asking.recv(&mut byte)?, byte), (1, *b"!"));
            let other = UdpSocket::bind(("0.0.0.0", 0))?;
            let before = tracked()?;
            for port in 100..200 {
                other.connect(("198.51.100.53", port))?;
                let refused = other.send(b"?").expect_err("is not let go");
                assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            }
            assert_eq!(tracked()?, before);
            other.connect(("198.51.100.53", 53))?;
            other.send(b"?")?;
            assert!(tracked()? > before);

            let own = TcpListener::bind(("0.0.0.0", 443))?;
            let _near = TcpStream::connect(("127.0.0.1", 443))?;
            own.accept()?;
            let direct = TcpStream::connect(("127.0.0.1", EGRESS_PORT))?;
            let (accepted, _) = listeners[0].accept()?;
            let seen = dialled(&accepted, libc::SOL_IP).unwrap_or_default();
            assert!(seen.is_empty() || seen[2] == 127, "{seen:?}");
            drop(direct);
            Ok(())
        })
        .expect("all of it works");
    }
}
