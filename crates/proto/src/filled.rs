//! Which chunks of a layer are there: bits in memory that holder and fetcher share while the layer is in use, and the
//! record on disk, which never says more than what is on disk with it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

use crate::loading::{chunks, CHUNK, RECORD_HEAD, RECORD_MAGIC};
use crate::shared::Shared;

/// The shared bits. They are only ever set, after the chunk's bytes have been written.
#[derive(Debug)]
pub struct Bits {
    memory: Shared,
    chunks: u64,
}

fn bytes_for(chunks: u64) -> usize {
    usize::try_from(chunks.div_ceil(8)).unwrap_or(usize::MAX)
}

impl Bits {
    /// New ones, with their memory's descriptor, of a layer whose data has so many bytes; `record` is what its file says.
    ///
    /// # Errors
    /// The errno.
    pub fn new(size: u64, record: &[u8]) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("dsec-filled", flags)?;
        ftruncate(&file, bytes_for(chunks(size)).max(1) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let bits = Self::map(file.as_fd(), size)?;
        for (place, byte) in recorded(record, bits.chunks).iter().enumerate() {
            bits.memory.atomic(place).store(*byte, Ordering::Release);
        }
        Ok((bits, file))
    }

    /// Those of another process.
    ///
    /// # Errors
    /// The errno.
    pub fn map(file: BorrowedFd<'_>, size: u64) -> io::Result<Self> {
        let chunks = chunks(size);
        let length = bytes_for(chunks).max(1);
        if rustix::fs::fstat(file)?.st_size != length as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Shared::new(file, length)?;
        Ok(Self { memory, chunks })
    }

    fn at(&self, chunk: u64) -> (&AtomicU8, u8) {
        assert!(chunk < self.chunks);
        (self.memory.atomic((chunk / 8) as usize), 1 << (chunk % 8))
    }

    /// Whether a chunk is there.
    #[must_use]
    pub fn has(&self, chunk: u64) -> bool {
        let (byte, bit) = self.at(chunk);
        byte.load(Ordering::Acquire) & bit != 0
    }

    /// It is.
    pub fn set(&self, chunk: u64) {
        let (byte, bit) = self.at(chunk);
        byte.fetch_or(bit, Ordering::Release);
    }

    /// Chunks that a range of bytes touches; what lies beyond the data touches none.
    #[must_use]
    pub fn touched(&self, offset: u64, length: u64) -> Range<u64> {
        let first = (offset / CHUNK).min(self.chunks);
        let end = chunks(offset.saturating_add(length)).min(self.chunks);
        first..end.max(first)
    }

    /// Whether all of a range of bytes is there.
    #[must_use]
    pub fn covers(&self, offset: u64, length: u64) -> bool {
        self.touched(offset, length).all(|chunk| self.has(chunk))
    }

    /// How many are there.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.copy()
            .iter()
            .map(|byte| u64::from(byte.count_ones()))
            .sum()
    }

    /// Whether all are.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.count() == self.chunks
    }

    /// How many there will be.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// The bits as they are now.
    #[must_use]
    pub fn copy(&self) -> Vec<u8> {
        let all = 0..bytes_for(self.chunks);
        all.map(|place| self.memory.atomic(place).load(Ordering::Acquire))
            .collect()
    }

    /// The record that says what is there now: to be written only after a flush of the data that follows this copy.
    #[must_use]
    pub fn record(&self) -> Vec<u8> {
        let head = [RECORD_MAGIC, self.chunks.to_le_bytes()].concat();
        [head, self.copy()].concat()
    }
}

/// The bits of a record of so many chunks; none when it is not whole.
fn recorded(record: &[u8], chunks: u64) -> &[u8] {
    let head = [RECORD_MAGIC, chunks.to_le_bytes()].concat();
    let bits = record.strip_prefix(head.as_slice()).unwrap_or_default();
    debug_assert_eq!(head.len(), RECORD_HEAD);
    let spare = chunks % 8;
    let beyond = |last: &u8| spare != 0 && last >> spare != 0;
    if bits.len() != bytes_for(chunks) || bits.last().is_some_and(beyond) {
        return &[];
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 * CHUNK + 1;

    /// What one process sets the other sees, and ranges are covered when all chunks that they touch are there.
    #[test]
    fn shared() {
        let (bits, file) = Bits::new(SIZE, &[]).expect("made");
        let other = Bits::map(file.as_fd(), SIZE).expect("mapped");
        assert_eq!((other.chunks(), other.count()), (11, 0));
        bits.set(2);
        bits.set(3);
        assert!(other.covers(2 * CHUNK, 2 * CHUNK));
        assert!(!other.covers(2 * CHUNK, 2 * CHUNK + 1));
        assert!(!other.covers(2 * CHUNK - 1, 2));
        assert!(
            other.covers(SIZE + CHUNK, 5),
            "there is nothing beyond the end"
        );
        assert_eq!(other.touched(0, u64::MAX), 0..11);
        (0..11).for_each(|chunk| bits.set(chunk));
        assert!(other.complete());
    }

    /// A record brings back what it says; one that is torn, of another size, or says what cannot be, brings nothing.
    #[test]
    fn records() {
        let (bits, _file) = Bits::new(SIZE, &[]).expect("made");
        bits.set(0);
        bits.set(10);
        let record = bits.record();
        let count = |record: &[u8], size| Bits::new(size, record).expect("made").0.count();
        assert_eq!(count(&record, SIZE), 2);
        assert_eq!(count(&record[..record.len() - 1], SIZE), 0);
        assert_eq!(count(&record, SIZE + CHUNK), 0);
        assert_eq!(count(&[], SIZE), 0);
        let mut beyond = record.clone();
        beyond[RECORD_HEAD + 1] |= 0x80;
        assert_eq!(count(&beyond, SIZE), 0);
    }

    /// Bits of another size are not mapped.
    #[test]
    fn sizes_agree() {
        let (_bits, file) = Bits::new(SIZE, &[]).expect("made");
        assert!(Bits::map(file.as_fd(), SIZE * 100).is_err());
    }
}
