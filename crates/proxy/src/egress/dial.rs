//! Connections to addresses of the world, from the node's own network: never to the node itself.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use dsec_proto::egress::Reason;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::policy::Policy;

const PATIENCE: Duration = Duration::from_secs(10);
/// For one of several addresses.
const EACH: Duration = Duration::from_secs(4);

/// Whether an address is one that the node's network leads to, and not one of the node's own, whatever the policy says.
///
/// # Errors
/// Why not.
pub fn may_reach(policy: &Policy, address: IpAddr) -> Result<(), Reason> {
    if policy.is_opened(address) {
        return Ok(());
    }
    if policy.is_protected(address) {
        return Err(Reason::ProtectedAddress);
    }
    match route_kind(address) {
        Ok(libc::RTN_UNICAST) => Ok(()),
        Ok(_) => Err(Reason::ProtectedAddress),
        Err(_) => Err(Reason::Unreachable),
    }
}

/// What kind of route the kernel would take, as it says itself: local ones lead to this machine.
fn route_kind(address: IpAddr) -> io::Result<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(libc::RTM_GETROUTE.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    let (family, value) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    bytes.extend([family as u8, value.len() as u8 * 8]);
    bytes.extend([0; 10]);
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(libc::RTA_DST.to_ne_bytes());
    bytes.extend(value);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given it to us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut answer = [0u8; 4096];
    // SAFETY: buffers with their own lengths. The kernel has answered when `send` returns.
    let count = unsafe {
        let fd = socket.as_raw_fd();
        if libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        let room = answer.len();
        libc::recv(fd, answer.as_mut_ptr().cast(), room, libc::MSG_DONTWAIT)
    };
    if count < 24 {
        return Err(io::ErrorKind::NetworkUnreachable.into());
    }
    match u16::from_ne_bytes([answer[4], answer[5]]) {
        libc::RTM_NEWROUTE => Ok(answer[16 + 7]),
        _ => Err(io::ErrorKind::NetworkUnreachable.into()),
    }
}

/// Connects to the first of these that answers.
///
/// # Errors
/// None did.
pub async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Reason> {
    let each = if addresses.len() > 1 { EACH } else { PATIENCE };
    let tried = async {
        for address in addresses {
            if let Ok(Ok(stream)) = timeout(each, TcpStream::connect(address)).await {
                return Ok(stream);
            }
        }
        Err(Reason::Unreachable)
    };
    let stream = timeout(PATIENCE * 2, tried)
        .await
        .unwrap_or(Err(Reason::Unreachable))?;
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel says of this machine's own addresses that they are.
    #[test]
    fn own_addresses_are_known() {
        for own in ["127.0.0.1", "127.9.9.9", "::1"] {
            let kind = route_kind(own.parse().expect("is one"));
            assert_eq!(kind.ok(), Some(libc::RTN_LOCAL), "{own}");
        }
    }
}
