//! The packet filter beside an uplink, against all of a node's sandboxes that have links: they reach nothing but what
//! lies beyond it, neither each other nor what is on its side.

use std::io;
use std::net::Ipv4Addr;

use super::batch::{Batch, Is, Verdict};
use super::rules::{Block, ANSWERS, NEW};
use super::{send, Bytes, ACK, NETFILTER, REQUEST};

/// The addresses of links. One of each ID range of the machine's.
pub const LINKS: Block = Block {
    address: [198, 18, 0, 0],
    bits: 16,
};
const DELETE_CONNECTIONS: u16 = ((libc::NFNL_SUBSYS_CTNETLINK as u16) << 8) | 2;
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
/// Before the filters of others.
const EARLY: i32 = libc::NF_IP_PRI_FILTER - 10;

/// Makes the filter: `links` is how the names of the node's links begin. One that is there stays; with `again` it is
/// replaced.
///
/// # Errors
/// The errno.
pub fn guard_uplink(table: &str, links: &str, uplink: &str, again: bool) -> io::Result<()> {
    match all(table, links, uplink, false).commit() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && again => {
            all(table, links, uplink, true).commit()
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Removes the filter, if there is one.
///
/// # Errors
/// The errno.
pub fn unguard_uplink(table: &str) -> io::Result<()> {
    match Batch::without(table).commit() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Lets the kernel forget the connections of a link, by their mark: else those of TCP would stay for days, and be as many
/// as there were sandboxes.
///
/// # Errors
/// The errno.
pub fn forget_connections(own: Ipv4Addr) -> io::Result<()> {
    forget(own, u32::MAX)
}

/// The same of all links whose addresses begin with the same bits.
///
/// # Errors
/// The errno.
pub fn forget_block(block: Block) -> io::Result<()> {
    let mask = u32::MAX << (32 - u32::from(block.bits.clamp(1, 32)));
    forget(Ipv4Addr::from(block.address), mask.to_be())
}

fn forget(first: Ipv4Addr, mask: u32) -> io::Result<()> {
    let mark = u32::from_ne_bytes(first.octets());
    let mut bytes = Bytes::default();
    bytes.message(DELETE_CONNECTIONS, REQUEST | ACK, 1, |bytes| {
        bytes.netfilter(libc::AF_UNSPEC as u8, 0);
        bytes.number(MARK, mark);
        bytes.number(MARK_MASK, mask);
    });
    send(NETFILTER, &bytes.0, 1)
}

fn all(table: &str, links: &str, uplink: &str, again: bool) -> Batch {
    let mut batch = Batch::of(table, again);
    arrived(&mut batch, links);
    through(&mut batch, links, uplink);
    batch.chain(
        "after",
        "nat",
        libc::NF_INET_POST_ROUTING,
        libc::NF_IP_PRI_NAT_SRC,
    );
    batch.rule("after", |rule| {
        rule.interface(true, Is::Equal, uplink);
        rule.block(SOURCE, LINKS.address, LINKS.bits);
        rule.masquerade();
    });
    batch
}

/// What comes from a link: with an address of one (whose it is the kernel looks after, by the way back), and never to
/// this side.
fn arrived(batch: &mut Batch, links: &str) {
    batch.chain(
        "before",
        "filter",
        libc::NF_INET_PRE_ROUTING,
        libc::NF_IP_PRI_RAW,
    );
    batch.rule("before", |rule| {
        rule.interfaces(false, links);
        rule.family(Is::Other, libc::NFPROTO_IPV4);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("before", |rule| {
        rule.interfaces(false, links);
        rule.address(libc::NFPROTO_IPV4, SOURCE, Is::Other, &LINKS.address[..2]);
        rule.verdict(Verdict::Drop);
    });
    batch.chain("to", "filter", libc::NF_INET_LOCAL_IN, EARLY);
    batch.rule("to", |rule| {
        rule.interfaces(false, links);
        rule.verdict(Verdict::Drop);
    });
}

/// What goes on: from a link by the uplink alone, and to one only answers from there.
fn through(batch: &mut Batch, links: &str, uplink: &str) {
    batch.chain("through", "filter", libc::NF_INET_FORWARD, EARLY);
    batch.rule("through", |rule| {
        rule.interfaces(false, links);
        rule.interface(true, Is::Other, uplink);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("through", |rule| {
        rule.interfaces(false, links);
        rule.block(DESTINATION, [169, 254, 0, 0], 16);
        rule.verdict(Verdict::Drop);
    });
    // What belongs to no connection would go on from the link's own address.
    batch.rule("through", |rule| {
        rule.interfaces(false, links);
        rule.state(ANSWERS | NEW, false);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("through", |rule| {
        rule.interfaces(false, links);
        rule.mark_by_source();
    });
    batch.rule("through", |rule| {
        rule.interfaces(true, links);
        rule.interface(false, Is::Other, uplink);
        rule.verdict(Verdict::Drop);
    });
    batch.rule("through", |rule| {
        rule.interfaces(true, links);
        rule.state(ANSWERS, false);
        rule.verdict(Verdict::Drop);
    });
}
