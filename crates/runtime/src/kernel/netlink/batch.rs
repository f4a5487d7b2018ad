//! One transaction on one table of nftables, and the expressions that rules are made of.

use std::io;

use super::{send, Bytes, ACK, APPEND, CREATE, EXCLUSIVE, NETFILTER, REQUEST};

const TABLES: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NEW_TABLE: u16 = TABLES;
const DELETE_TABLE: u16 = TABLES | 2;
const NEW_CHAIN: u16 = TABLES | 3;
const NEW_RULE: u16 = TABLES | 6;
const NEW_OBJECT: u16 = TABLES | 18;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// The family of tables for both families of addresses.
pub(super) const INET: u8 = 1;
/// The type of named counters.
pub(super) const COUNTER: u32 = 1;
/// Where a message's flags stand.
const FLAGS: usize = 6;

/// What becomes of a packet.
#[derive(Clone, Copy)]
pub(super) enum Verdict {
    Drop,
    Accept,
    /// Back to the chain that it came from.
    Return,
}

/// How a loaded value is to be to another one.
#[derive(Clone, Copy)]
pub(super) enum Is {
    Equal = 0,
    Other = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// A transaction.
pub(super) struct Batch {
    bytes: Bytes,
    table: String,
    /// Where the last message begins.
    last: usize,
}

impl Batch {
    /// One that makes a table and fails with EEXIST if there is one; with `again` it replaces the one that there is.
    pub(super) fn of(table: &str, again: bool) -> Self {
        let mut batch = Self::begun(table);
        if again {
            batch.message(DELETE_TABLE, REQUEST, |bytes| bytes.text(1, table));
        }
        let flags = REQUEST | CREATE | EXCLUSIVE;
        batch.message(NEW_TABLE, flags, |bytes| bytes.text(1, table));
        batch
    }

    /// One that removes a table, and fails with ENOENT if there is none.
    pub(super) fn without(table: &str) -> Self {
        let mut batch = Self::begun(table);
        batch.message(DELETE_TABLE, REQUEST, |bytes| bytes.text(1, table));
        batch
    }

    fn begun(table: &str) -> Self {
        let mut bytes = Bytes::default();
        bytes.message(BATCH_BEGIN, REQUEST, 0, framed);
        Self {
            bytes,
            table: table.into(),
            last: 0,
        }
    }

    fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Bytes)) {
        self.last = self.bytes.0.len();
        self.bytes.message(kind, flags, 1, |bytes| {
            bytes.netfilter(INET, 0);
            fill(bytes);
        });
    }

    /// A chain that packets come to at a hook.
    pub(super) fn chain(&mut self, name: &str, kind: &str, hook: libc::c_int, priority: i32) {
        let table = self.table.clone();
        self.message(NEW_CHAIN, REQUEST | CREATE, |bytes| {
            bytes.text(1, &table);
            bytes.text(3, name);
            bytes.text(7, kind);
            bytes.nested(4, |bytes| {
                bytes.number(1, hook as u32);
                bytes.number(2, priority as u32);
            });
        });
    }

    /// A chain that packets come to from others.
    pub(super) fn list(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(NEW_CHAIN, REQUEST | CREATE, |bytes| {
            bytes.text(1, &table);
            bytes.text(3, name);
        });
    }

    pub(super) fn counter(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(NEW_OBJECT, REQUEST | CREATE, |bytes| {
            bytes.text(1, &table);
            bytes.text(2, name);
            bytes.number(3, COUNTER);
            bytes.nested(4, |bytes| {
                bytes.attribute(1, &[0; 8]);
                bytes.attribute(2, &[0; 8]);
            });
        });
    }

    pub(super) fn rule(&mut self, chain: &str, fill: impl FnOnce(&mut Expressions)) {
        let table = self.table.clone();
        self.message(NEW_RULE, REQUEST | CREATE | APPEND, |bytes| {
            bytes.text(1, &table);
            bytes.text(2, chain);
            bytes.nested(4, |bytes| fill(&mut Expressions(bytes)));
        });
    }

    /// All of it, or nothing.
    pub(super) fn commit(mut self) -> io::Result<()> {
        // The first that fails is answered, and then the last: it alone is to say that all is done.
        let at = self.last + FLAGS;
        let flags = u16::from_ne_bytes([self.bytes.0[at], self.bytes.0[at + 1]]) | ACK;
        self.bytes.0[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
        self.bytes.message(BATCH_END, REQUEST, 1, framed);
        send(NETFILTER, &self.bytes.0, 1)
    }
}

fn framed(bytes: &mut Bytes) {
    bytes.netfilter(0, libc::NFNL_SUBSYS_NFTABLES as u16);
}

impl Bytes {
    /// The head of every message of nftables.
    pub(super) fn netfilter(&mut self, family: u8, resource: u16) {
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
}

/// A rule: packets go on from one expression to the next while they fit. Values are loaded into one register.
pub(super) struct Expressions<'a>(&'a mut Bytes);

impl Expressions<'_> {
    /// Loads something about the packet: 6 and 7 the names of the interfaces by which it came and goes, 15 the network's
    /// family, 16 the transport's protocol.
    fn meta(&mut self, key: u32) {
        self.0.expression("meta", |bytes| {
            bytes.number(2, key);
            bytes.number(1, 1);
        });
    }

    /// Loads bytes of the packet: base 1 is its network header, 2 its transport's.
    fn payload(&mut self, base: u32, offset: u32, length: u32) {
        self.0.expression("payload", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, base);
            bytes.number(3, offset);
            bytes.number(4, length);
        });
    }

    fn compare(&mut self, is: Is, value: &[u8]) {
        self.0.expression("cmp", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, is as u32);
            bytes.nested(3, |bytes| bytes.attribute(1, value));
        });
    }

    /// Leaves of what is loaded the bits of a mask.
    fn masked(&mut self, mask: &[u8]) {
        self.0.expression("bitwise", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, 1);
            bytes.number(3, mask.len() as u32);
            bytes.nested(4, |bytes| bytes.attribute(1, mask));
            bytes.nested(5, |bytes| bytes.attribute(1, &vec![0; mask.len()]));
        });
    }

    /// Ends the chain.
    pub(super) fn verdict(&mut self, verdict: Verdict) {
        let code: i32 = match verdict {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Return => -5,
        };
        self.0.expression("immediate", |bytes| {
            bytes.number(1, 0);
            bytes.nested(2, |bytes| {
                bytes.nested(2, |bytes| bytes.number(1, code as u32))
            });
        });
    }

    /// Goes through a list.
    pub(super) fn jump(&mut self, list: &str) {
        self.0.expression("immediate", |bytes| {
            bytes.number(1, 0);
            bytes.nested(2, |bytes| {
                bytes.nested(2, |bytes| {
                    bytes.number(1, -3i32 as u32);
                    bytes.text(2, list);
                });
            });
        });
    }

    pub(super) fn count(&mut self, counter: &str) {
        self.0.expression("objref", |bytes| {
            bytes.number(1, COUNTER);
            bytes.text(2, counter);
        });
    }

    pub(super) fn family(&mut self, is: Is, family: libc::c_int) {
        self.meta(15);
        self.compare(is, &[family as u8]);
    }

    /// Packets of this transport protocol.
    pub(super) fn transport(&mut self, protocol: libc::c_int) {
        self.meta(16);
        self.compare(Is::Equal, &[protocol as u8]);
    }

    /// Packets of a family whose address here is this or another one, or begins so.
    pub(super) fn address(&mut self, family: libc::c_int, offset: u32, is: Is, address: &[u8]) {
        self.family(Is::Equal, family);
        self.payload(1, offset, address.len() as u32);
        self.compare(is, address);
    }

    /// Packets of IPv4 whose address here begins with so many of these bits.
    pub(super) fn block(&mut self, offset: u32, address: [u8; 4], bits: u8) {
        self.family(Is::Equal, libc::NFPROTO_IPV4);
        let mask = u32::MAX
            .checked_shl(32 - u32::from(bits.min(32)))
            .unwrap_or(0);
        if mask == 0 {
            return;
        }
        self.payload(1, offset, 4);
        self.masked(&mask.to_be_bytes());
        self.compare(Is::Equal, &address);
    }

    /// Packets with a port in this range: at 0 where it comes from, at 2 where it goes.
    pub(super) fn ports(&mut self, offset: u32, (first, last): (u16, u16)) {
        self.payload(2, offset, 2);
        if first == last {
            return self.compare(Is::Equal, &first.to_be_bytes());
        }
        self.compare(Is::AtLeast, &first.to_be_bytes());
        self.compare(Is::AtMost, &last.to_be_bytes());
    }

    /// Messages of ICMP of this type.
    pub(super) fn icmp_type(&mut self, kind: u8) {
        self.payload(2, 0, 1);
        self.compare(Is::Equal, &[kind]);
    }

    /// Packets that came (or go, `out`) by the interface of this name; or by any other.
    pub(super) fn interface(&mut self, out: bool, is: Is, name: &str) {
        let mut whole = [0; libc::IFNAMSIZ];
        let length = name.len().min(libc::IFNAMSIZ - 1);
        whole[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.meta(if out { 7 } else { 6 });
        self.compare(is, &whole);
    }

    /// Packets that came (or go, `out`) by an interface whose name begins so.
    pub(super) fn interfaces(&mut self, out: bool, begin: &str) {
        self.meta(if out { 7 } else { 6 });
        self.compare(Is::Equal, begin.as_bytes());
    }

    /// Packets of which the kernel says one of these of their connection; or none of them.
    pub(super) fn state(&mut self, states: u32, any: bool) {
        self.0.expression("ct", |bytes| {
            bytes.number(1, 1);
            bytes.number(2, 0);
        });
        self.masked(&states.to_ne_bytes());
        let is = if any { Is::Other } else { Is::Equal };
        self.compare(is, &0u32.to_ne_bytes());
    }

    /// Packets with which there are more connections than so many.
    pub(super) fn more_than(&mut self, connections: u32) {
        self.0.expression("connlimit", |bytes| {
            bytes.number(1, connections);
            bytes.number(2, 1);
        });
    }

    /// Packets beyond so many a second, of which `burst` may come at once.
    pub(super) fn faster_than(&mut self, each_second: u32, burst: u32) {
        self.0.expression("limit", |bytes| {
            bytes.attribute(1, &u64::from(each_second).to_be_bytes());
            bytes.attribute(2, &1u64.to_be_bytes());
            bytes.number(3, burst);
            bytes.number(4, 0);
            bytes.number(5, 1);
        });
    }

    /// Has the kernel note the packet's source, of IPv4, as the mark of its connection.
    pub(super) fn mark_by_source(&mut self) {
        self.payload(1, 12, 4);
        self.0.expression("ct", |bytes| {
            bytes.number(2, 3);
            bytes.number(4, 1);
        });
    }

    /// To a port of the loopback address.
    pub(super) fn redirect(&mut self, port: u16) {
        self.0.expression("immediate", |bytes| {
            bytes.number(1, 1);
            bytes.nested(2, |bytes| bytes.attribute(1, &port.to_be_bytes()));
        });
        self.0.expression("redir", |bytes| {
            bytes.number(1, 1);
            bytes.number(3, 2);
        });
    }

    /// From the address of the interface by which it goes.
    pub(super) fn masquerade(&mut self) {
        self.0.expression("masq", |_| {});
    }
}
