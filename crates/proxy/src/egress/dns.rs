//! Questions and answers about names (RFC 1035), as little of it as addresses need. Pure; every byte is hostile.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::policy::name_of;

/// IPv4 addresses.
pub const A: u16 = 1;
/// IPv6 addresses.
pub const AAAA: u16 = 28;
const CNAME: u16 = 5;
const OPT: u16 = 41;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const INTERNET: u16 = 1;
const HEAD: usize = 12;
/// Most records of an answer that are looked at.
const MAX_RECORDS: u16 = 256;
/// Longest chain of names.
const MAX_CHAIN: usize = 16;

/// No error.
pub const OK: u8 = 0;
/// The question cannot be read.
pub const FORMAT: u8 = 1;
/// There is no answer now.
pub const FAILURE: u8 = 2;
/// There is no such name.
pub const NO_NAME: u8 = 3;
/// Such questions are not answered.
pub const REFUSED: u8 = 5;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The asker's number.
    pub id: u16,
    /// The name, in the form in which names are compared; `None` when it is none.
    pub name: Option<String>,
    /// What is asked of it.
    pub kind: u16,
    /// As it stands in the packet, to be repeated in the answer.
    raw: Vec<u8>,
}

impl Question {
    /// Whether it asks for addresses.
    #[must_use]
    pub fn is_for_addresses(&self) -> bool {
        matches!(self.kind, A | AAAA)
    }

    /// Whether it asks how to speak to the name: what is said there, keys for encrypted hellos among it, stays unsaid.
    #[must_use]
    pub fn is_for_service(&self) -> bool {
        matches!(self.kind, SVCB | HTTPS)
    }
}

/// Reads a question; `None` for what gets no answer at all.
#[must_use]
pub fn question(packet: &[u8]) -> Option<Result<Question, Vec<u8>>> {
    if packet.len() < HEAD || packet[2] & 0x80 != 0 {
        return None;
    }
    let wrong = || Some(Err(head(u16_at(packet, 0).unwrap_or(0), FORMAT, 0, 0)));
    let plain = packet[2] & 0x78 == 0 && u16_at(packet, 4) == Some(1);
    let Some((labels, end)) = labels(packet, HEAD, false).filter(|_| plain) else {
        return wrong();
    };
    let (Some(kind), Some(INTERNET)) = (u16_at(packet, end), u16_at(packet, end + 2)) else {
        return wrong();
    };
    Some(Ok(Question {
        id: u16_at(packet, 0)?,
        name: name_of(&labels),
        kind,
        raw: packet[HEAD..end + 4].to_vec(),
    }))
}

fn head(id: u16, code: u8, questions: u16, answers: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([0x81, 0x80 | code]);
    for count in [questions, answers, 0, 0] {
        bytes.extend(count.to_be_bytes());
    }
    bytes
}

/// An answer with these addresses under the name itself, or with a code.
#[must_use]
pub fn answer(question: &Question, code: u8, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
    let mut bytes = head(question.id, code, 1, addresses.len() as u16);
    bytes.extend(&question.raw);
    for address in addresses {
        let (kind, data) = match address {
            IpAddr::V4(address) => (A, address.octets().to_vec()),
            IpAddr::V6(address) => (AAAA, address.octets().to_vec()),
        };
        bytes.extend([0xc0, HEAD as u8]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(INTERNET.to_be_bytes());
        bytes.extend(ttl.to_be_bytes());
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

/// A question to the node's own resolvers.
#[must_use]
pub fn ask(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(INTERNET.to_be_bytes());
    // That answers may have 1,232 bytes.
    bytes.push(0);
    bytes.extend(OPT.to_be_bytes());
    bytes.extend(1232u16.to_be_bytes());
    bytes.extend([0; 6]);
    bytes
}

/// What a resolver has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// How it went.
    pub code: u8,
    /// The answer is longer than a datagram.
    pub cut: bool,
    /// The name that was asked for and those it leads to.
    pub chain: Vec<String>,
    /// Addresses of the last of them.
    pub addresses: Vec<IpAddr>,
    /// For so long, seconds.
    pub ttl: u32,
}

/// Reads the answer to `ask(id, name, kind)`; `None` for anything else.
#[must_use]
pub fn said(packet: &[u8], id: u16, name: &str, kind: u16) -> Option<Said> {
    let flags = u16_at(packet, 2)?;
    if u16_at(packet, 0)? != id || flags & 0x8000 == 0 || u16_at(packet, 4)? != 1 {
        return None;
    }
    let (asked, mut at) = labels(packet, HEAD, true)?;
    if !asked.eq_ignore_ascii_case(name) || u16_at(packet, at)? != kind {
        return None;
    }
    at += 4;
    let mut said = Said {
        code: (flags & 15) as u8,
        cut: flags & 0x0200 != 0,
        chain: vec![name.to_owned()],
        addresses: Vec::new(),
        ttl: u32::MAX,
    };
    let mut records = Vec::new();
    for _ in 0..u16_at(packet, 6)?.min(MAX_RECORDS) {
        let Some((record, next)) = record(packet, at) else {
            // Of one that is cut what is whole does not count.
            return said.cut.then_some(said);
        };
        records.push(record);
        at = next;
    }
    follow(&mut said, &records, kind)?;
    Some(said)
}

struct Record {
    name: String,
    kind: u16,
    ttl: u32,
    data: Data,
}

enum Data {
    Address(IpAddr),
    Name(String),
    Other,
}

fn record(packet: &[u8], at: usize) -> Option<(Record, usize)> {
    let (name, at) = labels(packet, at, true)?;
    let kind = u16_at(packet, at)?;
    let class = u16_at(packet, at + 2)?;
    let ttl = u32::from(u16_at(packet, at + 4)?) << 16 | u32::from(u16_at(packet, at + 6)?);
    let length = usize::from(u16_at(packet, at + 8)?);
    let begin = at + 10;
    let bytes = packet.get(begin..begin + length)?;
    let data = match kind {
        _ if class != INTERNET => Data::Other,
        A => Data::Address(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        AAAA => Data::Address(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        CNAME => Data::Name(labels(packet, begin, true)?.0.to_ascii_lowercase()),
        _ => Data::Other,
    };
    let name = name.to_ascii_lowercase();
    Some((
        Record {
            name,
            kind,
            ttl,
            data,
        },
        begin + length,
    ))
}

/// From the name that was asked for, by the names it leads to, to addresses. `None` for a chain without an end.
fn follow(said: &mut Said, records: &[Record], kind: u16) -> Option<()> {
    loop {
        let name = said.chain.last()?.clone();
        let leads = records.iter().find_map(|record| match &record.data {
            Data::Name(to) if record.name == name => Some((to, record.ttl)),
            _ => None,
        });
        let Some((to, ttl)) = leads else { break };
        if said.chain.len() >= MAX_CHAIN || said.chain.contains(to) {
            return None;
        }
        said.ttl = said.ttl.min(ttl);
        said.chain.push(to.clone());
    }
    let last = said.chain.last()?;
    for record in records {
        if let (Data::Address(address), true) =
            (&record.data, record.kind == kind && record.name == *last)
        {
            said.ttl = said.ttl.min(record.ttl);
            said.addresses.push(*address);
        }
    }
    Some(())
}

fn u16_at(packet: &[u8], at: usize) -> Option<u16> {
    let bytes = packet.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// A name and where it ends. Pointers only lead backwards, so that there are no circles, and never into the head.
fn labels(packet: &[u8], begin: usize, pointers: bool) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut at, mut end, mut floor) = (begin, None, begin);
    loop {
        let length = usize::from(*packet.get(at)?);
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = packet.get(at + 1..at + 1 + length)?;
                if name.len() + length > 254
                    || !label.iter().all(u8::is_ascii_graphic)
                    || label.contains(&b'.')
                {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(std::str::from_utf8(label).ok()?);
                at += 1 + length;
            }
            0xc0.. if pointers => {
                let to = usize::from(u16_at(packet, at)? & 0x3fff);
                if !(HEAD..floor).contains(&to) {
                    return None;
                }
                end.get_or_insert(at + 2);
                (at, floor) = (to, to);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for label in text.split('.') {
            bytes.push(label.len() as u8);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes
    }

    fn response(asked: &str, records: &[(&str, u16, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = head(7, OK, 1, records.len() as u16);
        bytes.extend(name(asked));
        bytes.extend([0, 1, 0, 1]);
        for (owner, kind, ttl, data) in records {
            bytes.extend(name(owner));
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1]);
            bytes.extend(ttl.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    /// A question is read, its answer has its number and repeats it, and what cannot be read is told so.
    #[test]
    fn questions() {
        let packet = ask(9, "A.example.test", AAAA);
        let asked = question(&packet).expect("is one").expect("is read");
        assert_eq!(
            (asked.id, asked.name.as_deref(), asked.kind),
            (9, Some("a.example.test"), AAAA)
        );
        let answered = answer(&asked, OK, &["2001:db8::1".parse().expect("is one")], 60);
        let read = said(&answered, 9, "a.example.test", AAAA).expect("is read");
        assert_eq!((read.addresses.len(), read.ttl, read.code), (1, 60, OK));
        assert_eq!(question(&packet[..11]), None);
        assert_eq!(question(&answered), None);
        let mut pointed = ask(9, "a.test", A);
        pointed[HEAD] = 0xc0;
        assert!(matches!(question(&pointed), Some(Err(_))));
        assert!(matches!(question(&packet[..20]), Some(Err(_))));
    }

    /// A chain of names is followed to its addresses; what belongs to other names is not taken.
    #[test]
    fn chains() {
        let packet = response(
            "a.test",
            &[
                ("evil.test", A, 9, vec![6, 6, 6, 6]),
                ("a.test", CNAME, 300, name("b.test")),
                ("b.test", CNAME, 20, name("c.test")),
                ("c.test", A, 100, vec![192, 0, 2, 1]),
                ("c.test", AAAA, 1, vec![0; 16]),
            ],
        );
        let read = said(&packet, 7, "a.test", A).expect("is read");
        assert_eq!(read.chain, ["a.test", "b.test", "c.test"]);
        assert_eq!(
            read.addresses,
            ["192.0.2.1".parse::<IpAddr>().expect("is one")]
        );
        assert_eq!(read.ttl, 20);
        assert_eq!(said(&packet, 8, "a.test", A), None);
        assert_eq!(said(&packet, 7, "b.test", A), None);
        let circle = response(
            "a.test",
            &[
                ("a.test", CNAME, 1, name("b.test")),
                ("b.test", CNAME, 1, name("a.test")),
            ],
        );
        assert_eq!(said(&circle, 7, "a.test", A), None);
    }

    /// An address is one of its own family, whatever was asked: as a CNAME's data, 192.0.2.1 would be read as a name.
    #[test]
    fn an_address_is_no_name() {
        let asked = question(&ask(9, "a.test", CNAME)).expect("is one");
        let address = "192.0.2.1".parse().expect("is one");
        let answered = answer(&asked.expect("is read"), OK, &[address], 60);
        let read = said(&answered, 9, "a.test", CNAME).expect("is read");
        assert_eq!(read.chain, ["a.test"]);
        let into_head = response("a.test", &[("a.test", CNAME, 1, vec![0xc0, 0])]);
        assert_eq!(said(&into_head, 7, "a.test", A), None);
    }

    /// No bytes whatever do harm.
    #[test]
    fn hostile() {
        let mut state = 1u32;
        for _ in 0..50_000 {
            let mut bytes = response(
                "a.test",
                &[
                    ("a.test", CNAME, 1, name("b.test")),
                    ("b.test", A, 1, vec![1; 4]),
                ],
            );
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = state as u8;
            }
            let _ = (question(&bytes), said(&bytes, 7, "a.test", A));
        }
    }
}
