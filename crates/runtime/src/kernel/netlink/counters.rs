//! What the packet filter of a sandbox has dropped.

use std::io;

use super::batch::{COUNTER, INET};
use super::rules::COUNTERS;
use super::{long, read, short, socket, write, Bytes, NETFILTER, REQUEST};

const TAKE: u16 = ((libc::NFNL_SUBSYS_NFTABLES as u16) << 8) | 21;
const OBJECT: u16 = ((libc::NFNL_SUBSYS_NFTABLES as u16) << 8) | 18;
/// Header of a message, and of one of nftables.
const HEAD: usize = 16;
const OWN: usize = 4;

/// Packets that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// No rule asks for them.
    pub unasked: u64,
    /// Their source is not the link's.
    pub forged: u64,
    /// There were as many connections as there may be.
    pub full: u64,
}

/// What was dropped since this was last asked in the calling thread's network namespace. Nothing where nothing counts.
///
/// # Errors
/// The errno.
pub fn take_counts() -> io::Result<Counts> {
    let socket = socket(NETFILTER)?;
    let mut counts = [0; COUNTERS.len()];
    for (name, count) in COUNTERS.iter().zip(&mut counts) {
        let mut bytes = Bytes::default();
        bytes.message(TAKE, REQUEST, 1, |bytes| {
            bytes.netfilter(INET, 0);
            bytes.text(1, "dsec");
            bytes.text(2, name);
            bytes.number(3, COUNTER);
        });
        write(&socket, &bytes.0)?;
        *count = packets(&read(&socket)?)?;
    }
    let [unasked, forged, full] = counts;
    Ok(Counts {
        unasked,
        forged,
        full,
    })
}

/// What an answer says.
fn packets(answer: &[u8]) -> io::Result<u64> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    if answer.len() < HEAD + OWN {
        return Err(wrong());
    }
    match short(answer, 4) {
        OBJECT => {
            let data = attribute(&answer[HEAD + OWN..], 4).ok_or_else(wrong)?;
            let packets = attribute(data, 2).ok_or_else(wrong)?;
            Ok(u64::from_be_bytes(packets.try_into().map_err(|_| wrong())?))
        }
        kind if kind == libc::NLMSG_ERROR as u16 => match long(answer, HEAD) as i32 {
            errno if -errno == libc::ENOENT => Ok(0),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        },
        _ => Err(wrong()),
    }
}

/// The bytes of the first attribute of this kind.
fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while bytes.len() >= 4 {
        let length = usize::from(short(bytes, 0));
        let value = bytes.get(4..length)?;
        if short(bytes, 2) & 0x3fff == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter is found behind other attributes; what is none or cut short is an error, and no table counts nothing.
    #[test]
    fn read_from_an_answer() {
        let answer = |data: bool| {
            let mut bytes = Bytes::default();
            bytes.message(OBJECT, 0, 1, |bytes| {
                bytes.netfilter(INET, 0);
                bytes.text(1, "dsec");
                if data {
                    bytes.nested(4, |bytes| {
                        bytes.attribute(1, &9u64.to_be_bytes());
                        bytes.attribute(2, &7u64.to_be_bytes());
                    });
                }
            });
            bytes.0
        };
        assert_eq!(packets(&answer(true)).expect("is one"), 7);
        assert!(packets(&answer(false)).is_err());
        let whole = answer(true);
        assert!((0..whole.len()).all(|length| packets(&whole[..length]).is_err()));
        let refused = |errno: i32| {
            let mut bytes = Bytes::default();
            let kind = libc::NLMSG_ERROR as u16;
            bytes.message(kind, 0, 1, |bytes| bytes.0.extend((-errno).to_ne_bytes()));
            bytes.0
        };
        assert_eq!(packets(&refused(libc::ENOENT)).expect("is none"), 0);
        assert!(packets(&refused(libc::EPERM)).is_err());
    }
}
