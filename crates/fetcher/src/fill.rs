//! From stored bytes to bytes that a reader may see. Blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use dsec_proto::loading::CHUNK;

use crate::index::{sha256, Chunk};

/// The bytes of a chunk, if they are those of its digest.
#[must_use]
pub fn decode(chunk: &Chunk, stored: &[u8], length: usize) -> Option<Vec<u8>> {
    let raw = match stored.len() {
        0 => vec![0; length],
        stored_length if stored_length == length => stored.to_vec(),
        _ => {
            let mut raw = vec![0; length];
            let decoded = zstd::bulk::decompress_to_buffer(stored, &mut raw);
            if decoded.ok()? != length {
                return None;
            }
            raw
        }
    };
    (sha256(&raw) == chunk.digest).then_some(raw)
}

/// Writes a chunk to its place. Zeros are there already.
///
/// # Errors
/// The errno.
pub fn write(data: &File, place: u64, chunk: &Chunk, raw: &[u8]) -> io::Result<()> {
    if chunk.length == 0 {
        return Ok(());
    }
    data.write_all_at(raw, place * CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(raw: &[u8], stored: &[u8]) -> Chunk {
        Chunk {
            digest: sha256(raw),
            blob: 0,
            length: stored.len() as u32,
            offset: 0,
        }
    }

    /// What is stored as it is, as a frame, or not at all, comes out as it was.
    #[test]
    fn all_forms() {
        let raw: Vec<u8> = (0..10_000u32).map(|n| (n / 100) as u8).collect();
        let frame = zstd::bulk::compress(&raw, 3).expect("compressed");
        let zeros = vec![0; 5000];
        assert_eq!(
            decode(&chunk(&raw, &raw), &raw, raw.len()).as_ref(),
            Some(&raw)
        );
        assert_eq!(
            decode(&chunk(&raw, &frame), &frame, raw.len()).as_ref(),
            Some(&raw)
        );
        assert_eq!(
            decode(&chunk(&zeros, &[]), &[], 5000).as_ref(),
            Some(&zeros)
        );
    }

    /// Other bytes, a damaged frame, one that holds more or less, and zeros that are none are not shown to anybody.
    #[test]
    fn corrupt() {
        let raw: Vec<u8> = (0..10_000u32).map(|n| (n / 100) as u8).collect();
        let mut frame = zstd::bulk::compress(&raw, 3).expect("compressed");
        let told = chunk(&raw, &frame);
        assert_eq!(decode(&told, &frame, raw.len() - 1), None);
        assert_eq!(decode(&told, &frame, raw.len() + 1), None);
        let middle = frame.len() / 2;
        frame[middle] ^= 1;
        assert_eq!(decode(&told, &frame, raw.len()), None);
        let mut other = raw.clone();
        other[77] ^= 1;
        assert_eq!(decode(&chunk(&raw, &raw), &other, raw.len()), None);
        assert_eq!(decode(&chunk(&raw, &[]), &[], raw.len()), None);
    }
}
