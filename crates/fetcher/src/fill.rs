//! From stored bytes to bytes that a reader may see. Blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use dsec_proto::loading::CHUNK;
use zstd::bulk::Decompressor;

use crate::index::{sha256, Chunk, Digest};

/// What a thread unpacks with.
pub struct Decoder {
    zstd: Decompressor<'static>,
    raw: Vec<u8>,
}

impl Decoder {
    /// A new one.
    ///
    /// # Errors
    /// Without memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            zstd: Decompressor::new()?,
            raw: vec![0; CHUNK as usize],
        })
    }

    /// The bytes of a chunk, if they are those of its digest.
    #[must_use]
    pub fn decode<'a>(
        &'a mut self,
        chunk: &Chunk,
        stored: &'a [u8],
        length: usize,
    ) -> Option<&'a [u8]> {
        let raw = match stored.len() {
            0 => {
                self.raw.get_mut(..length)?.fill(0);
                if length == CHUNK as usize {
                    return (chunk.digest == *zeros()).then_some(&self.raw[..length]);
                }
                &self.raw[..length]
            }
            stored_length if stored_length == length => stored,
            _ => {
                let raw = self.raw.get_mut(..length)?;
                let decoded = self.zstd.decompress_to_buffer(stored, raw);
                if decoded.ok()? != length {
                    return None;
                }
                &self.raw[..length]
            }
        };
        (sha256(raw) == chunk.digest).then_some(raw)
    }
}

/// The digest of a chunk of zeros: sparse images are full of them.
fn zeros() -> &'static Digest {
    static ZEROS: OnceLock<Digest> = OnceLock::new();
    ZEROS.get_or_init(|| sha256(&[0; CHUNK as usize]))
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

    fn decode(chunk: &Chunk, stored: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut decoder = Decoder::new().expect("made");
        // What was there before must not matter.
        decoder.raw.fill(0xee);
        decoder.decode(chunk, stored, length).map(<[u8]>::to_vec)
    }

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
        let whole = vec![0; CHUNK as usize];
        let decoded = decode(&chunk(&whole, &[]), &[], whole.len());
        assert_eq!(decoded.as_ref(), Some(&whole));
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
        let whole = vec![1; CHUNK as usize];
        assert_eq!(decode(&chunk(&whole, &[]), &[], whole.len()), None);
    }

    /// Whatever a store sends is no chunk, or the right one.
    #[test]
    fn hostile() {
        let raw: Vec<u8> = (0..50_000u32).map(|n| (n / 7) as u8).collect();
        let frame = zstd::bulk::compress(&raw, 3).expect("compressed");
        let told = chunk(&raw, &frame);
        let mut decoder = Decoder::new().expect("made");
        for at in 0..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] = damaged[at].wrapping_add(1 + (at % 255) as u8);
            let decoded = decoder.decode(&told, &damaged, raw.len());
            assert!(decoded.is_none_or(|bytes| bytes == raw));
            assert!(decoder.decode(&told, &frame[..at], raw.len()).is_none());
        }
        assert!(decoder.decode(&told, &frame, usize::MAX).is_none());
        let good = decoder.decode(&told, &frame, raw.len());
        assert_eq!(good, Some(raw.as_slice()), "it is not spoilt by that");
    }
}
