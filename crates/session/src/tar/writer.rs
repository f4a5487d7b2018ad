//! Headers of the archives that are written.

use super::fields::checksum;
use super::{padding, Kind, Member, BLOCK};

const MOST_OCTAL: u64 = 0o77_777_777_777;
const MOST_ID: u32 = 0o7_777_777;

/// Everything before a member's data: its PAX header if it needs one, its own, and the map of a sparse file.
pub(crate) fn header(member: &Member) -> Vec<u8> {
    let map = member.sparse.as_deref().map(map);
    let held: u64 = match &member.sparse {
        Some(parts) => parts.iter().map(|(_, length)| length).sum(),
        None => member.size,
    };
    let stored = match member.kind {
        Kind::File => held + map.as_ref().map_or(0, |map| map.len() as u64),
        _ => 0,
    };
    let records = records(member, stored);
    let mut all = Vec::with_capacity(4 * BLOCK);
    if !records.is_empty() {
        let length = records.len() as u64;
        let extended = Member {
            name: b"././@PaxHeader".to_vec(),
            link: Vec::new(),
            mode: 0o644,
            ..member.clone()
        };
        all.extend(block(&extended, b'x', length));
        all.extend(&records);
        all.resize(all.len() + padding(length), 0);
    }
    let kind = match member.kind {
        Kind::File | Kind::Device => b'0',
        Kind::HardLink => b'1',
        Kind::Link => b'2',
        Kind::Directory => b'5',
        Kind::Fifo => b'6',
    };
    all.extend(block(member, kind, stored));
    all.extend(map.unwrap_or_default());
    all
}

/// The two empty blocks at an archive's end.
pub(crate) fn end_mark() -> [u8; 2 * BLOCK] {
    [0; 2 * BLOCK]
}

fn records(member: &Member, stored: u64) -> Vec<u8> {
    let mut all = Vec::new();
    if let (Some(_), Kind::File) = (&member.sparse, member.kind) {
        record(&mut all, "GNU.sparse.major", b"1");
        record(&mut all, "GNU.sparse.minor", b"0");
        record(&mut all, "GNU.sparse.name", &member.name);
        record(
            &mut all,
            "GNU.sparse.realsize",
            member.size.to_string().as_bytes(),
        );
    } else if member.name.len() > 100 {
        record(&mut all, "path", &member.name);
    }
    if member.link.len() > 100 {
        record(&mut all, "linkpath", &member.link);
    }
    if stored > MOST_OCTAL {
        record(&mut all, "size", stored.to_string().as_bytes());
    }
    if member.uid > MOST_ID {
        record(&mut all, "uid", member.uid.to_string().as_bytes());
    }
    if member.gid > MOST_ID {
        record(&mut all, "gid", member.gid.to_string().as_bytes());
    }
    if !(0..=MOST_OCTAL as i64).contains(&member.mtime) {
        record(&mut all, "mtime", member.mtime.to_string().as_bytes());
    }
    all
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
fn record(all: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    all.extend(format!("{length} {key}=").as_bytes());
    all.extend(value);
    all.push(b'\n');
}

/// The parts of a sparse file in decimal, filled up to whole blocks.
fn map(parts: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", parts.len());
    for (offset, length) in parts {
        text += &format!("{offset}\n{length}\n");
    }
    let mut map = text.into_bytes();
    map.resize(map.len() + padding(map.len() as u64), 0);
    map
}

fn block(member: &Member, kind: u8, stored: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let put = |header: &mut [u8; BLOCK], at: usize, bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let octal = |value: u64, digits: usize| format!("{value:0digits$o}\0").into_bytes();
    put(&mut header, 0, &member.name[..member.name.len().min(100)]);
    put(&mut header, 100, &octal(u64::from(member.mode & 0o7777), 7));
    put(
        &mut header,
        108,
        &octal(u64::from(member.uid.min(MOST_ID)), 7),
    );
    put(
        &mut header,
        116,
        &octal(u64::from(member.gid.min(MOST_ID)), 7),
    );
    put(&mut header, 124, &octal(stored.min(MOST_OCTAL), 11));
    let mtime = u64::try_from(member.mtime).unwrap_or(0).min(MOST_OCTAL);
    put(&mut header, 136, &octal(mtime, 11));
    header[156] = kind;
    put(&mut header, 157, &member.link[..member.link.len().min(100)]);
    put(&mut header, 257, b"ustar\x0000");
    let sum = octal(u64::from(checksum(&header)), 6);
    put(&mut header, 148, &sum);
    header[155] = b' ';
    header
}

#[cfg(test)]
mod tests {
    use super::record;

    /// A record's length counts itself, also where that makes it a digit longer.
    #[test]
    fn records_count_themselves() {
        for length in 1..200 {
            let mut all = Vec::new();
            record(&mut all, "k", &vec![b'v'; length]);
            let text = String::from_utf8(all.clone()).expect("text");
            let (number, _) = text.split_once(' ').expect("a length");
            assert_eq!(number.parse(), Ok(all.len()));
        }
    }
}
