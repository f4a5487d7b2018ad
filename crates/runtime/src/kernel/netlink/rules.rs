//! The packet filter of a sandbox's namespace: what ends in the node's own sockets, what leaves by its link, and that
//! nothing else goes anywhere.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::batch::{Batch, Expressions, Is, Verdict};

const TABLE: &str = "dsec";
/// The name of a link inside.
pub(super) const INNER: &str = "eth0";
const FAMILIES: [libc::c_int; 2] = [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6];
/// Where addresses of IPv4 stand in its header.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
const ECHO_REQUEST: u8 = 8;
const UNREACHABLE: u8 = 3;
/// What the kernel says of a packet's connection.
const ESTABLISHED: u32 = 2;
const RELATED: u32 = 4;
pub(super) const NEW: u32 = 8;
pub(super) const ANSWERS: u32 = ESTABLISHED | RELATED;
/// What part of the connections at a time may be new ones of TCP in a second.
const OVER_EACH_SECOND: u32 = 4;
/// Counters of what is dropped: no rule asks for it, its source is not the link's, there are too many connections.
pub(super) const COUNTERS: [&str; 3] = [UNASKED, FORGED, FULL];
const UNASKED: &str = "unasked";
const FORGED: &str = "forged";
const FULL: &str = "full";

/// Addresses of IPv4 that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first.
    pub address: [u8; 4],
    /// How many bits.
    pub bits: u8,
}

impl Block {
    /// Whether an address is one of them.
    #[must_use]
    pub fn holds(self, address: Ipv4Addr) -> bool {
        let differ = u32::from(address) ^ u32::from_be_bytes(self.address);
        differ
            .checked_shr(32 - u32::from(self.bits))
            .is_none_or(|bits| bits == 0)
    }
}

/// One rule for what leaves by a link. What is empty matches all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whether it leaves.
    pub allow: bool,
    /// The transport's protocol.
    pub protocol: Option<u8>,
    /// Where to.
    pub block: Option<Block>,
    /// The ports there, first and last.
    pub ports: Option<(u16, u16)>,
}

/// All that is said of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Its address inside.
    pub own: Ipv4Addr,
    /// Most connections at a time.
    pub most: u32,
    /// The first that matches decides.
    pub asked: Vec<Asked>,
    /// What nothing reaches.
    pub closed: Vec<Block>,
    /// Exceptions from that.
    pub opened: Vec<Block>,
    /// What nothing reaches without exception.
    pub never: Vec<Block>,
}

/// Lets every TCP connection that is not to the loopback address end at this port of it, and every datagram to port 53
/// too; lets what `routed` allows leave by the link, whether there is one yet or not; drops what is neither before the
/// kernel keeps anything of it. All at once, and in place of what was there.
///
/// # Errors
/// The errno.
pub fn redirect_to(port: u16, routed: Option<&Routed>) -> io::Result<()> {
    // A batch that deletes makes the socket's end wait for everybody who reads the rules, some 10 ms: only where it must.
    match all(port, routed, false).commit() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            all(port, routed, true).commit()
        }
        done => done,
    }
}

/// The batch, for a namespace without the table or, `again`, for one that has it.
fn all(port: u16, routed: Option<&Routed>, again: bool) -> Batch {
    let mut batch = Batch::of(TABLE, again);
    if let Some(routed) = routed {
        COUNTERS.iter().for_each(|name| batch.counter(name));
        asked(&mut batch, routed);
    }
    drop_others(&mut batch, port, routed);
    batch.chain(
        "out",
        "nat",
        libc::NF_INET_LOCAL_OUT,
        libc::NF_IP_PRI_NAT_DST,
    );
    for family in FAMILIES {
        batch.rule("out", |rule| {
            towards_loopback(rule, family);
            rule.verdict(Verdict::Accept);
        });
    }
    batch.rule("out", |rule| {
        rule.transport(libc::IPPROTO_UDP);
        rule.ports(2, (53, 53));
        rule.redirect(port);
    });
    if let Some(routed) = routed {
        stay(&mut batch, "out", routed);
        batch.rule("out", |rule| {
            rule.transport(libc::IPPROTO_TCP);
            rule.jump("routed");
        });
    }
    batch.rule("out", |rule| {
        rule.transport(libc::IPPROTO_TCP);
        rule.redirect(port);
    });
    if let Some(routed) = routed {
        leave(&mut batch, routed);
        arrive(&mut batch, routed);
    }
    batch
}

/// A chain before the kernel's own table of connections, in which what goes nowhere has no entry.
fn drop_others(batch: &mut Batch, port: u16, routed: Option<&Routed>) {
    batch.chain(
        "first",
        "filter",
        libc::NF_INET_LOCAL_OUT,
        libc::NF_IP_PRI_RAW,
    );
    for family in FAMILIES {
        batch.rule("first", |rule| {
            towards_loopback(rule, family);
            rule.verdict(Verdict::Accept);
        });
        // What the name server answers.
        batch.rule("first", |rule| {
            of_the_node(rule, family);
            rule.transport(libc::IPPROTO_UDP);
            rule.ports(0, (port, port));
            rule.verdict(Verdict::Accept);
        });
    }
    batch.rule("first", |rule| {
        rule.transport(libc::IPPROTO_TCP);
        rule.verdict(Verdict::Accept);
    });
    batch.rule("first", |rule| {
        rule.transport(libc::IPPROTO_UDP);
        rule.ports(2, (53, 53));
        rule.verdict(Verdict::Accept);
    });
    if let Some(routed) = routed {
        stay(batch, "first", routed);
        batch.rule("first", |rule| rule.jump("routed"));
        // The kernel's own, to answers for which nobody waits any more.
        batch.rule("first", |rule| {
            rule.family(Is::Equal, libc::NFPROTO_IPV4);
            rule.transport(libc::IPPROTO_ICMP);
            rule.icmp_type(UNREACHABLE);
            rule.verdict(Verdict::Drop);
        });
    }
    batch.rule("first", |rule| {
        if routed.is_some() {
            rule.count(UNASKED);
        }
        rule.verdict(Verdict::Drop);
    });
}

/// To the sandbox's own programs by the link's address, which never leaves.
fn stay(batch: &mut Batch, chain: &str, routed: &Routed) {
    batch.rule(chain, |rule| {
        let own = routed.own.octets();
        rule.address(libc::NFPROTO_IPV4, DESTINATION, Is::Equal, &own);
        rule.verdict(Verdict::Accept);
    });
}

/// Packets to loopback addresses.
fn towards_loopback(rule: &mut Expressions, family: libc::c_int) {
    match family {
        libc::NFPROTO_IPV4 => rule.address(family, DESTINATION, Is::Equal, &[127]),
        _ => rule.address(family, 24, Is::Equal, &Ipv6Addr::LOCALHOST.octets()),
    }
}

/// Packets from the address at which the node's own sockets are.
fn of_the_node(rule: &mut Expressions, family: libc::c_int) {
    match family {
        libc::NFPROTO_IPV4 => {
            rule.address(family, SOURCE, Is::Equal, &Ipv4Addr::LOCALHOST.octets());
        }
        _ => rule.address(family, 8, Is::Equal, &Ipv6Addr::LOCALHOST.octets()),
    }
}

/// The lists: `asked` accepts what the rules allow, `back` the answers to that, `routed` what may be reached of it.
fn asked(batch: &mut Batch, routed: &Routed) {
    batch.list("asked");
    batch.list("back");
    batch.list("routed");
    for asked in &routed.asked {
        let verdict = if asked.allow {
            Verdict::Accept
        } else {
            Verdict::Return
        };
        batch.rule("asked", |rule| {
            matches(rule, asked, DESTINATION, 2);
            if asked.protocol == Some(libc::IPPROTO_ICMP as u8) {
                rule.icmp_type(ECHO_REQUEST);
            }
            rule.verdict(verdict);
        });
        batch.rule("back", |rule| {
            matches(rule, asked, SOURCE, 0);
            rule.verdict(verdict);
        });
    }
    let mut beyond = |blocks: &[Block], opened: bool| {
        for block in blocks {
            batch.rule("routed", |rule| {
                rule.block(DESTINATION, block.address, block.bits);
                if opened {
                    rule.jump("asked");
                } else {
                    rule.verdict(Verdict::Return);
                }
            });
        }
    };
    beyond(&routed.never, false);
    beyond(&routed.opened, true);
    beyond(&routed.closed, false);
    batch.rule("routed", |rule| rule.jump("asked"));
}

/// Packets that a rule is about, by their address and port at these places.
fn matches(rule: &mut Expressions, asked: &Asked, address: u32, port: u32) {
    let block = asked.block.unwrap_or(Block {
        address: [0; 4],
        bits: 0,
    });
    rule.block(address, block.address, block.bits);
    if let Some(protocol) = asked.protocol {
        rule.transport(libc::c_int::from(protocol));
    }
    if let Some(ports) = asked.ports {
        rule.ports(port, ports);
    }
}

/// What goes by the link, looked at last: whatever brought it there, only what is asked for leaves, from the link's own
/// address. Connections that never were let out are not kept.
fn leave(batch: &mut Batch, routed: &Routed) {
    batch.chain(
        "leave",
        "filter",
        libc::NF_INET_POST_ROUTING,
        libc::NF_IP_PRI_FILTER,
    );
    batch.rule("leave", |rule| {
        rule.interface(true, Is::Other, INNER);
        rule.verdict(Verdict::Accept);
    });
    batch.rule("leave", |rule| {
        let own = routed.own.octets();
        rule.address(libc::NFPROTO_IPV4, SOURCE, Is::Other, &own);
        rule.count(FORGED);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("leave", |rule| {
        rule.state(NEW, true);
        rule.more_than(routed.most);
        rule.count(FULL);
        rule.verdict(Verdict::Drop);
    });
    // Those of TCP that are over are counted no more, and remembered for two minutes beside the uplink.
    batch.rule("leave", |rule| {
        rule.state(NEW, true);
        rule.transport(libc::IPPROTO_TCP);
        rule.faster_than(routed.most / OVER_EACH_SECOND + 1, routed.most);
        rule.count(FULL);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("leave", |rule| rule.jump("routed"));
    batch.rule("leave", |rule| {
        rule.count(UNASKED);
        rule.verdict(Verdict::Drop);
    });
}

/// What comes by the link: answers to what is asked for now. A rule that is gone takes those to what it had let out with
/// it, whatever the kernel remembers.
fn arrive(batch: &mut Batch, routed: &Routed) {
    batch.chain(
        "arrive",
        "filter",
        libc::NF_INET_LOCAL_IN,
        libc::NF_IP_PRI_FILTER,
    );
    batch.rule("arrive", |rule| {
        rule.interface(false, Is::Other, INNER);
        rule.verdict(Verdict::Accept);
    });
    batch.rule("arrive", |rule| {
        let own = routed.own.octets();
        rule.address(libc::NFPROTO_IPV4, DESTINATION, Is::Other, &own);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("arrive", |rule| {
        rule.state(ANSWERS, false);
        rule.verdict(Verdict::Drop);
    });
    // That something on its way could not be delivered: whoever says so.
    batch.rule("arrive", |rule| {
        rule.state(RELATED, true);
        rule.transport(libc::IPPROTO_ICMP);
        rule.verdict(Verdict::Accept);
    });
    batch.rule("arrive", |rule| rule.jump("back"));
    batch.rule("arrive", |rule| rule.verdict(Verdict::Drop));
}
