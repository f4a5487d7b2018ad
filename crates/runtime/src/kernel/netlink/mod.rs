//! Netlink messages, and what is asked of the kernel with them, always in the calling thread's network namespace: routes
//! and links ([`links`]), and rules for packets ([`rules`]).

mod batch;
mod counters;
mod links;
mod machine;
mod rules;
mod uplink;

pub use counters::{take_counts, Counts};
pub use links::{
    configure_inner, configure_outer, link_exists, links_with, make_link, remove_inner_link,
    remove_link, route_all_to_loopback,
};
pub use machine::own_addresses;
pub use rules::{redirect_to, Asked, Block, Routed};
pub use uplink::{forget_block, forget_connections, guard_uplink, unguard_uplink, LINKS};

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::sys::{check, owned};

const ROUTE: libc::c_int = libc::NETLINK_ROUTE;
const NETFILTER: libc::c_int = libc::NETLINK_NETFILTER;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;
const NESTED: u16 = 1 << 15;
/// Larger ones need a larger buffer than sockets have.
const USUAL: usize = 100_000;
const LARGE: libc::c_int = 4 << 20;

/// Bytes of messages, one after the other.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    /// A message: header, then what `fill` puts behind it.
    fn message(&mut self, kind: u16, flags: u16, number: u32, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(number.to_ne_bytes());
        self.0.extend([0; 4]);
        fill(self);
        let length = (self.0.len() - at) as u32;
        self.0[at..at + 4].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.0.len().next_multiple_of(4);
        self.0.resize(length, 0);
    }

    /// An attribute with these bytes.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.pad();
    }

    /// An attribute of attributes.
    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        fill(self);
        let length = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }
}

fn socket(protocol: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers.
    owned(libc::c_long::from(unsafe {
        libc::socket(libc::AF_NETLINK, kind, protocol)
    }))
}

fn write(socket: &OwnedFd, messages: &[u8]) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    if messages.len() > USUAL {
        let (large, size) = (LARGE, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: a number that outlives the call, with its size.
        check(libc::c_long::from(unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_SNDBUFFORCE,
                (&raw const large).cast(),
                size,
            )
        }))?;
    }
    // SAFETY: a buffer with its own length.
    check(unsafe { libc::send(fd, messages.as_ptr().cast(), messages.len(), 0) } as libc::c_long)?;
    Ok(())
}

/// What the kernel has answered: it has when a message is written, so that this never waits.
fn read(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; 8192];
    let fd = socket.as_raw_fd();
    // SAFETY: a buffer with its own length.
    let count = unsafe {
        libc::recv(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    let count = check(count as libc::c_long)? as usize;
    buffer.truncate(count);
    Ok(buffer)
}

/// Sends messages and waits for the answers to those that ask for one.
fn send(protocol: libc::c_int, messages: &[u8], answers: usize) -> io::Result<()> {
    let socket = socket(protocol)?;
    write(&socket, messages)?;
    let mut left = answers;
    while left > 0 {
        left = left.saturating_sub(outcomes(&read(&socket)?)?);
    }
    Ok(())
}

fn long(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into().unwrap_or_default();
    u32::from_ne_bytes(bytes)
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// How many answers are in this; the error of the first that is one.
fn outcomes(mut bytes: &[u8]) -> io::Result<usize> {
    let mut found = 0;
    while bytes.len() >= 20 {
        let length = long(bytes, 0) as usize;
        if short(bytes, 4) == libc::NLMSG_ERROR as u16 {
            match long(bytes, 16) as i32 {
                0 => found += 1,
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
        let next = length.max(16).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Ok(found)
}
