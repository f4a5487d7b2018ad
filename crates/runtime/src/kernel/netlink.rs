//! Netlink messages, and what is asked of the kernel with them: a route of everything to `lo`, and the rules by which
//! connections end in the node's own listeners.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

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
const TABLES: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NEW_TABLE: u16 = TABLES;
const DELETE_TABLE: u16 = TABLES | 2;
const NEW_CHAIN: u16 = TABLES | 3;
const NEW_RULE: u16 = TABLES | 6;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const INET: u8 = 1;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const FAMILIES: [libc::c_int; 2] = [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6];

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

    /// The head of every message of nftables.
    fn netfilter(&mut self, family: u8, resource: u16) {
        self.0.extend([family, 0]);
        self.0.extend(resource.to_be_bytes());
    }

    /// An expression of a rule: its name and its own attributes.
    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.nested(1, |bytes| {
            bytes.text(1, name);
            bytes.nested(2, fill);
        });
    }

    /// Loads something about the packet: 15 the network's family, 16 the transport's protocol.
    fn meta(&mut self, key: u32) {
        self.expression("meta", |bytes| {
            bytes.number(2, key);
            bytes.number(1, 1);
        });
    }

    /// Loads bytes of the packet: base 1 is its network header, 2 its transport's.
    fn payload(&mut self, base: u32, offset: u32, length: u32) {
        self.expression("payload", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, base);
            bytes.number(3, offset);
            bytes.number(4, length);
        });
    }

    /// Goes on only when what is loaded is this.
    fn equals(&mut self, value: &[u8]) {
        self.expression("cmp", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, 0);
            bytes.nested(3, |bytes| bytes.attribute(1, value));
        });
    }

    /// Ends the chain: 1 lets the packet pass, 0 drops it.
    fn verdict(&mut self, code: u32) {
        self.expression("immediate", |bytes| {
            bytes.number(1, 0);
            bytes.nested(2, |bytes| bytes.nested(2, |bytes| bytes.number(1, code)));
        });
    }

    /// Goes on only with packets of this transport protocol.
    fn transport(&mut self, protocol: libc::c_int) {
        self.meta(16);
        self.equals(&[protocol as u8]);
    }

    /// Goes on only with packets of a family whose address here is this, or begins so.
    fn address(&mut self, family: libc::c_int, offset: u32, address: &[u8]) {
        self.meta(15);
        self.equals(&[family as u8]);
        self.payload(1, offset, address.len() as u32);
        self.equals(address);
    }

    /// Goes on only with packets to loopback addresses.
    fn towards_loopback(&mut self, family: libc::c_int) {
        match family {
            libc::NFPROTO_IPV4 => self.address(family, 16, &[127]),
            _ => self.address(family, 24, &Ipv6Addr::LOCALHOST.octets()),
        }
    }

    /// Goes on only with packets from the address at which the node's own sockets are.
    fn of_the_node(&mut self, family: libc::c_int) {
        match family {
            libc::NFPROTO_IPV4 => self.address(family, 12, &Ipv4Addr::LOCALHOST.octets()),
            _ => self.address(family, 8, &Ipv6Addr::LOCALHOST.octets()),
        }
    }

    /// To a port of the loopback address.
    fn redirect(&mut self, port: u16) {
        self.expression("immediate", |bytes| {
            bytes.number(1, 1);
            bytes.nested(2, |bytes| bytes.attribute(1, &port.to_be_bytes()));
        });
        self.expression("redir", |bytes| {
            bytes.number(1, 1);
            bytes.number(3, 2);
        });
    }

    fn rule(&mut self, chain: &str, flags: u16, fill: impl FnOnce(&mut Self)) {
        self.message(NEW_RULE, REQUEST | CREATE | APPEND | flags, 1, |bytes| {
            bytes.netfilter(INET, 0);
            bytes.text(1, "dsec");
            bytes.text(2, chain);
            bytes.nested(4, fill);
        });
    }

    /// A chain for what programs send.
    fn chain(&mut self, name: &str, kind: &str, priority: i32) {
        self.message(NEW_CHAIN, REQUEST | CREATE, 1, |bytes| {
            bytes.netfilter(INET, 0);
            bytes.text(1, "dsec");
            bytes.text(3, name);
            bytes.text(7, kind);
            bytes.nested(4, |bytes| {
                bytes.number(1, libc::NF_INET_LOCAL_OUT as u32);
                bytes.number(2, priority as u32);
            });
        });
    }
}

/// Sends messages and waits for the answers to those that ask for one.
fn send(protocol: libc::c_int, messages: &[u8], answers: usize) -> io::Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers.
    let socket = owned(libc::c_long::from(unsafe {
        libc::socket(libc::AF_NETLINK, kind, protocol)
    }))?;
    let fd = socket.as_raw_fd();
    // SAFETY: a buffer with its own length.
    check(unsafe { libc::send(fd, messages.as_ptr().cast(), messages.len(), 0) } as libc::c_long)?;
    let mut left = answers;
    while left > 0 {
        let mut buffer = [0u8; 8192];
        // SAFETY: as above. The kernel has answered when `send` returns, so that this never waits.
        let count = unsafe {
            libc::recv(
                fd,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        let count = check(count as libc::c_long)? as usize;
        left = left.saturating_sub(outcomes(&buffer[..count])?);
    }
    Ok(())
}

/// How many answers are in this; the error of the first that is one.
fn outcomes(mut bytes: &[u8]) -> io::Result<usize> {
    let mut found = 0;
    while bytes.len() >= 20 {
        let long = |at: usize| {
            let bytes = bytes[at..at + 4].try_into().unwrap_or_default();
            u32::from_ne_bytes(bytes)
        };
        let length = long(0) as usize;
        if u16::from_ne_bytes([bytes[4], bytes[5]]) == libc::NLMSG_ERROR as u16 {
            match long(16) as i32 {
                0 => found += 1,
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
        let next = length.max(16).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    Ok(found)
}

/// Routes every address of both families to `lo`, in the calling thread's network namespace, and gives it `own`: programs
/// that ask for addresses of families that this machine has (AI_ADDRCONFIG) take one with 127.0.0.1 alone for one without.
/// May be repeated.
///
/// # Errors
/// The errno.
pub fn route_all_to_loopback(own: Ipv4Addr) -> io::Result<()> {
    let loopback = 1u32;
    let mut bytes = Bytes::default();
    let flags = REQUEST | ACK | CREATE | REPLACE;
    bytes.message(libc::RTM_NEWADDR, flags, 1, |bytes| {
        let scope = libc::RT_SCOPE_HOST;
        bytes.0.extend([libc::AF_INET as u8, 32, 0, scope]);
        bytes.0.extend(loopback.to_ne_bytes());
        bytes.attribute(libc::IFA_LOCAL, &own.octets());
        bytes.attribute(libc::IFA_ADDRESS, &own.octets());
    });
    for family in [libc::AF_INET, libc::AF_INET6] {
        bytes.message(libc::RTM_NEWROUTE, flags, 1, |bytes| {
            let scope = if family == libc::AF_INET {
                libc::RT_SCOPE_HOST
            } else {
                libc::RT_SCOPE_UNIVERSE
            };
            let table = libc::RT_TABLE_MAIN;
            bytes.0.extend([family as u8, 0, 0, 0]);
            bytes
                .0
                .extend([table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL]);
            bytes.0.extend([0; 4]);
            bytes.attribute(libc::RTA_OIF, &loopback.to_ne_bytes());
        });
    }
    send(ROUTE, &bytes.0, 3)
}

/// Lets every TCP connection that is not to the loopback address end at this port of it, and every datagram to port 53
/// too, in the calling thread's network namespace; drops what is neither before the kernel keeps anything of it. All at
/// once, and in place of what was there.
///
/// # Errors
/// The errno.
pub fn redirect_to(port: u16) -> io::Result<()> {
    // A batch that deletes makes the socket's end wait for everybody who reads the rules, some 10 ms: only where it must.
    match send(NETFILTER, &redirecting(port, false), 1) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            send(NETFILTER, &redirecting(port, true), 1)
        }
        sent => sent,
    }
}

/// The batch, for a namespace without the table or, `again`, for one that has it.
fn redirecting(port: u16, again: bool) -> Vec<u8> {
    let mut bytes = Bytes::default();
    let table = |bytes: &mut Bytes| {
        bytes.netfilter(INET, 0);
        bytes.text(1, "dsec");
    };
    let framed = |bytes: &mut Bytes| bytes.netfilter(0, libc::NFNL_SUBSYS_NFTABLES as u16);
    bytes.message(BATCH_BEGIN, REQUEST, 0, framed);
    if again {
        bytes.message(DELETE_TABLE, REQUEST, 1, table);
    }
    bytes.message(NEW_TABLE, REQUEST | CREATE | EXCLUSIVE, 1, table);
    drop_others(&mut bytes, port);
    bytes.chain("out", "nat", libc::NF_IP_PRI_NAT_DST);
    for family in FAMILIES {
        bytes.rule("out", 0, |bytes| {
            bytes.towards_loopback(family);
            bytes.verdict(ACCEPT);
        });
    }
    bytes.rule("out", 0, |bytes| {
        bytes.transport(libc::IPPROTO_UDP);
        bytes.payload(2, 2, 2);
        bytes.equals(&53u16.to_be_bytes());
        bytes.redirect(port);
    });
    bytes.rule("out", ACK, |bytes| {
        bytes.transport(libc::IPPROTO_TCP);
        bytes.redirect(port);
    });
    bytes.message(BATCH_END, REQUEST, 1, framed);
    bytes.0
}

/// A chain before the kernel's own table of connections, in which what goes nowhere has no entry.
fn drop_others(bytes: &mut Bytes, port: u16) {
    bytes.chain("first", "filter", libc::NF_IP_PRI_RAW);
    for family in FAMILIES {
        bytes.rule("first", 0, |bytes| {
            bytes.towards_loopback(family);
            bytes.verdict(ACCEPT);
        });
        // What the name server answers.
        bytes.rule("first", 0, |bytes| {
            bytes.of_the_node(family);
            bytes.transport(libc::IPPROTO_UDP);
            bytes.payload(2, 0, 2);
            bytes.equals(&port.to_be_bytes());
            bytes.verdict(ACCEPT);
        });
    }
    bytes.rule("first", 0, |bytes| {
        bytes.transport(libc::IPPROTO_TCP);
        bytes.verdict(ACCEPT);
    });
    bytes.rule("first", 0, |bytes| {
        bytes.transport(libc::IPPROTO_UDP);
        bytes.payload(2, 2, 2);
        bytes.equals(&53u16.to_be_bytes());
        bytes.verdict(ACCEPT);
    });
    bytes.rule("first", 0, |bytes| bytes.verdict(DROP));
}
