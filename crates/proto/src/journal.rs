//! The journal of a sandbox's network: a file in memory of a fixed size that the proxy writes, the keeper holds and the
//! runtime reads, so that no death takes a count or an event with it.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use crate::egress::{EgressCount, EgressEvent, EgressRecord, Reason};

/// Events that are kept.
pub const KEPT: u64 = 256;
const HEAD: usize = 64;
const PLACE: usize = 320;
/// Longest name that a place holds.
const MAX_NAME: usize = 253;
/// Size of the file.
pub const BYTES: u64 = HEAD as u64 + KEPT * PLACE as u64;

/// An event as it is noted.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'a> {
    /// Unix time, nanoseconds.
    pub at_ns: u64,
    /// Whether it is about a name that was looked up, not about a connection.
    pub is_name: bool,
    /// Why.
    pub reason: Reason,
    /// The name.
    pub name: Option<&'a str>,
    /// Address and port.
    pub to: Option<(IpAddr, u16)>,
}

/// What the head says: the counts and the number of events.
///
/// # Errors
/// The errno.
pub fn head(file: &File) -> io::Result<(EgressCount, u64)> {
    let mut bytes = [0; HEAD];
    file.read_exact_at(&mut bytes, 0)?;
    let mut numbers = bytes
        .chunks_exact(8)
        .map(|place| u64::from_le_bytes(place.try_into().unwrap_or_default()));
    let mut next = || numbers.next().unwrap_or_default();
    let count = EgressCount {
        connections: next(),
        refused: next(),
        sent_bytes: next(),
        received_bytes: next(),
        names: next(),
        names_refused: next(),
    };
    Ok((count, next()))
}

/// Writes the head.
///
/// # Errors
/// The errno.
pub fn set_head(file: &File, count: &EgressCount, events: u64) -> io::Result<()> {
    let mut bytes = [0; HEAD];
    let numbers = [
        count.connections,
        count.refused,
        count.sent_bytes,
        count.received_bytes,
        count.names,
        count.names_refused,
        events,
    ];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    file.write_all_at(&bytes, 0)
}

fn place(number: u64) -> u64 {
    HEAD as u64 + number % KEPT * PLACE as u64
}

/// Writes an event into its place; it counts once the head does.
///
/// # Errors
/// The errno.
pub fn note(file: &File, number: u64, noted: &Noted<'_>) -> io::Result<()> {
    let mut bytes = [0; PLACE];
    bytes[0..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&noted.at_ns.to_le_bytes());
    bytes[16] = noted.reason as u8;
    bytes[17] = u8::from(noted.is_name);
    match noted.to {
        Some((IpAddr::V4(address), port)) => {
            bytes[18] = 4;
            bytes[20..22].copy_from_slice(&port.to_le_bytes());
            bytes[24..28].copy_from_slice(&address.octets());
        }
        Some((IpAddr::V6(address), port)) => {
            bytes[18] = 6;
            bytes[20..22].copy_from_slice(&port.to_le_bytes());
            bytes[24..40].copy_from_slice(&address.octets());
        }
        None => {}
    }
    if let Some(name) = noted.name {
        let name = &name.as_bytes()[..name.len().min(MAX_NAME)];
        bytes[19] = name.len() as u8;
        bytes[40..40 + name.len()].copy_from_slice(name);
    }
    file.write_all_at(&bytes, place(number))
}

/// The counts, and the latest events from a number on, at most so many. What is just being written anew is left out.
///
/// # Errors
/// The errno.
pub fn read(file: &File, from: u64, most: u64) -> io::Result<EgressRecord> {
    let (count, events) = head(file)?;
    let first = from.max(events.saturating_sub(most.min(KEPT)));
    let mut latest = Vec::new();
    for number in first..events {
        let mut bytes = [0; PLACE];
        file.read_exact_at(&mut bytes, place(number))?;
        latest.extend(event(number, &bytes));
    }
    Ok(EgressRecord {
        count,
        events,
        latest,
    })
}

fn event(number: u64, bytes: &[u8; PLACE]) -> Option<EgressEvent> {
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    if long(0) != number {
        return None;
    }
    let address = match bytes[18] {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(&bytes[24..28]).ok()?)),
        6 => Some(IpAddr::from(<[u8; 16]>::try_from(&bytes[24..40]).ok()?)),
        _ => None,
    };
    let name = &bytes[40..40 + usize::from(bytes[19]).min(MAX_NAME)];
    Some(EgressEvent {
        number,
        at: long(8) as f64 / 1e9,
        kind: if bytes[17] == 1 { "name" } else { "connection" }.into(),
        reason: Reason::of(bytes[16])?,
        name: (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned()),
        port: address.map(|_| u16::from_le_bytes([bytes[20], bytes[21]])),
        address: address.map(|address| address.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let path = std::env::temp_dir().join(format!(
            "dsec-journal-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).expect("is made");
        std::fs::remove_file(&path).expect("is removed");
        file.set_len(BYTES).expect("is sized");
        file
    }

    /// What is noted is read, of more events than are kept the latest, and each in its own words.
    #[test]
    fn noted_and_read() {
        let file = file();
        let count = EgressCount {
            connections: 1,
            refused: 2,
            sent_bytes: 3,
            received_bytes: u64::MAX,
            names: 5,
            names_refused: 6,
        };
        for number in 0..KEPT + 10 {
            let noted = Noted {
                at_ns: 1_500_000_000,
                is_name: number % 2 == 0,
                reason: Reason::NamesDisagree,
                name: Some("a.example.test"),
                to: Some(("2001:db8::1".parse().expect("is one"), 443)),
            };
            note(&file, number, &noted).expect("is noted");
            set_head(&file, &count, number + 1).expect("is noted");
        }
        let record = read(&file, 0, u64::MAX).expect("is read");
        assert_eq!((record.count, record.events), (count, KEPT + 10));
        assert_eq!(record.latest.len() as u64, KEPT);
        let first = &record.latest[0];
        assert_eq!((first.number, first.at), (10, 1.5));
        assert_eq!(first.kind, "name");
        assert_eq!(first.address.as_deref(), Some("2001:db8::1"));
        assert_eq!(
            (first.name.as_deref(), first.port),
            (Some("a.example.test"), Some(443))
        );
        assert_eq!(read(&file, KEPT + 9, 64).expect("is read").latest.len(), 1);
        assert_eq!(read(&file, 0, 5).expect("is read").latest.len(), 5);
    }

    /// A journal that its writer has filled with anything at all is read without harm.
    #[test]
    fn hostile() {
        let file = file();
        let bytes = vec![0xff; BYTES as usize];
        file.write_all_at(&bytes, 0).expect("is written");
        let record = read(&file, 0, u64::MAX).expect("is read");
        assert!(record.latest.is_empty());
    }

    /// Every reason has a number of its own that means it.
    #[test]
    fn reasons() {
        for number in 1..=15 {
            assert_eq!(Reason::of(number).map(|reason| reason as u8), Some(number));
        }
        assert_eq!(Reason::of(0), None);
    }
}
