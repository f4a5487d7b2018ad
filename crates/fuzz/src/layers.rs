//! What stores and disks say of layers, and the records that unprivileged processes keep.

use std::io::{Seek, Write};

use dsec_fetcher::index::{hex, manifest, sha256, Index};
use dsec_fetcher::runs::runs;
use dsec_proto::filled::Bits;
use dsec_proto::journal;
use dsec_proto::loading::CHUNK;
use rustix::fs::MemfdFlags;

/// An index and its `layer.json`: one that is taken has a place for each chunk, and all chunks are asked for once.
pub(crate) fn chunk_index(bytes: &[u8]) {
    let Some((told, raw)) = cut(bytes) else {
        return;
    };
    let Ok(manifest) = manifest(&hex(&sha256(told)), told) else {
        return;
    };
    let Ok(index) = Index::read(raw, &manifest) else {
        return;
    };
    assert!(index.chunks.len() <= raw.len() / 48 && index.blobs.len() <= raw.len() / 32);
    let all: Vec<u64> = (0..index.chunks.len() as u64).collect();
    let lengths: u64 = all.iter().map(|chunk| index.length(*chunk) as u64).sum();
    assert_eq!(lengths, index.size);
    let asked: Vec<u64> = runs(&index, &all)
        .iter()
        .flat_map(|run| run.chunks())
        .collect();
    assert_eq!(asked, all);
}

/// A length, two bytes, and the two pieces that it makes.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

/// What is filled, and what was refused, as a process without privileges left it.
pub(crate) fn records(bytes: &[u8]) {
    let size = bytes.first().map_or(0, |byte| u64::from(*byte) * CHUNK / 3);
    let (bits, _file) = Bits::new(size, bytes.get(1..).unwrap_or_default()).expect("memory");
    assert!(bits.count() <= bits.chunks());
    let (again, _other) = Bits::new(size, &bits.record()).expect("memory");
    assert_eq!(again.copy(), bits.copy());
    let file = rustix::fs::memfd_create("journal", MemfdFlags::CLOEXEC).expect("memory");
    let mut file = std::fs::File::from(file);
    file.set_len(journal::BYTES).expect("is sized");
    file.write_all(bytes).expect("is written");
    file.rewind().expect("is rewound");
    if let Ok(read) = journal::read(&file, 0, 64) {
        assert!(read.latest.len() <= 64);
        assert!(read.latest.iter().all(|event| event.number < read.events));
    }
}
