//! What fuzzers drive and nothing else sees.

use std::io::{Seek, Write};

use rustix::fs::MemfdFlags;

use crate::tar::{end_mark, header, Kind, Member, Reader, MOST_NAME, MOST_PARTS};
use crate::unpack::relative;

fn archive(bytes: &[u8]) -> std::fs::File {
    let file = rustix::fs::memfd_create("archive", MemfdFlags::CLOEXEC).expect("memory");
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).expect("is written");
    file.rewind().expect("is rewound");
    file
}

/// Reads an archive to its end or its first fault, and each member as it is written anew.
///
/// # Panics
/// Where a promise does not hold.
pub fn tar(bytes: &[u8]) {
    let file = archive(bytes);
    let mut reader = Reader::new(&file);
    let mut stored = 0;
    while let Ok(Some(member)) = reader.next() {
        assert!((1..=MOST_NAME).contains(&member.name.len()) && !member.name.contains(&0));
        assert!(member.link.len() <= MOST_NAME && !member.link.contains(&0));
        assert!(member.mode & !0o7777 == 0 && member.parts().len() <= MOST_PARTS);
        if let Ok(name) = relative(&member.name) {
            let mut parts = name.split(|byte| *byte == b'/');
            assert!(name.is_empty() || parts.all(|part| !matches!(part, b"" | b"." | b"..")));
        }
        let mut end = 0;
        for (offset, length) in member.parts() {
            assert!(offset >= end && offset + length <= member.size);
            end = offset + length;
        }
        while let Ok(part @ [_, ..]) = reader.data() {
            stored += part.len();
        }
        written_anew(&member);
    }
    assert!(stored <= bytes.len());
    let _ = reader.drain();
}

fn written_anew(member: &Member) {
    if member.kind == Kind::Device {
        return;
    }
    let stored: u64 = member.parts().iter().map(|(_, length)| length).sum();
    // Where a header alone is read its data is not missed.
    let bytes = [header(member), end_mark().to_vec()].concat();
    let file = archive(&bytes);
    let found = Reader::new(&file).next();
    let found = found.expect("is read again").expect("is a member");
    assert_eq!((&found.name, found.kind), (&member.name, member.kind));
    assert_eq!(
        (found.size, found.sparse.is_some()),
        (member.size, member.sparse.is_some()),
        "{stored} bytes"
    );
}
