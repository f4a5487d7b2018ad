//! The events that are open, in memory that outlives this process.
//!
//! The kernel writes events straight into the shared memory: there is no moment at which an event is read and not
//! noted, whenever this process is killed. Each of them then becomes an entry, which goes when it has been answered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dsec_fault::fault;
use dsec_proto::shared::Shared;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

use crate::fan::{events, Event, Group, EVENT};

/// Most events that are open at once; more wait in the kernel.
pub const MOST: usize = 4096;
/// Most events of one read.
const BATCH: usize = 256;
const VERSION: u64 = 1;
const HEAD: usize = 8;
const ENTRY: usize = 48;
const RAW: usize = HEAD + MOST * ENTRY;
const SIZE: usize = RAW + BATCH * EVENT;

/// The layer of an event whose descriptor died before it was looked at.
pub const ANY: u32 = 0;

/// An open event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the kernel said.
    pub event: Event,
    /// The layer's number, or [`ANY`].
    pub layer: u32,
    /// CLOCK_BOOTTIME when it was read.
    pub since_ns: u64,
}

/// The journal.
#[derive(Debug)]
pub struct Journal {
    file: OwnedFd,
    memory: Shared,
    free: Vec<usize>,
}

impl Journal {
    /// An empty one.
    ///
    /// # Errors
    /// The errno.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("dsec-journal", flags)?;
        ftruncate(&file, SIZE as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut journal = Self::open(file)?;
        journal.memory.write(0, &VERSION.to_ne_bytes());
        Ok(journal)
    }

    /// A dead holder's. Its events become entries, those that were not looked at of layer [`ANY`].
    ///
    /// # Errors
    /// The errno; `InvalidData` for one of another version.
    pub fn take_up(file: OwnedFd, now_ns: u64) -> io::Result<Self> {
        let mut journal = Self::open(file)?;
        if journal.memory.read::<8>(0) != VERSION.to_ne_bytes() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let known = journal.entries().map(|(_, entry)| entry.event.fd);
        let known: Vec<i32> = known.collect();
        journal.note(BATCH * EVENT, &known, now_ns, &mut |_| ANY);
        Ok(journal)
    }

    fn open(file: OwnedFd) -> io::Result<Self> {
        let mut memory = Shared::new(file.as_fd(), SIZE)?;
        // The kernel must not have to wait for a page while it hands over an event.
        memory.touch();
        let free = (0..MOST).rev();
        let mut journal = Self {
            file,
            memory,
            free: Vec::new(),
        };
        journal.free = free.filter(|slot| journal.entry(*slot).is_none()).collect();
        Ok(journal)
    }

    /// Its memory, for the keeper.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether another event can be taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes events that wait, at most as many as there is room for. `layer_of` says whose file an event's descriptor
    /// is. Returns the new entries.
    ///
    /// # Errors
    /// The errno.
    pub fn take(
        &mut self,
        group: &Group,
        now_ns: u64,
        layer_of: &mut dyn FnMut(&Event) -> u32,
    ) -> io::Result<Vec<usize>> {
        let room = self.free.len().min(BATCH) * EVENT;
        if room == 0 {
            return Ok(Vec::new());
        }
        let read = group.read(self.memory.bytes_mut(RAW, room))?;
        if read == 0 {
            return Ok(Vec::new());
        }
        fault!("holder.event.read");
        Ok(self.note(read, &[], now_ns, layer_of))
    }

    /// Makes entries of what the kernel wrote, but for those that are known already.
    fn note(
        &mut self,
        length: usize,
        known: &[i32],
        now_ns: u64,
        layer_of: &mut dyn FnMut(&Event) -> u32,
    ) -> Vec<usize> {
        let raw = self.memory.bytes_mut(RAW, length).to_vec();
        let mut added = Vec::new();
        for event in events(&raw) {
            if known.contains(&event.fd) {
                continue;
            }
            let Some(slot) = self.free.pop() else { break };
            let entry = Entry {
                event,
                layer: layer_of(&event),
                since_ns: now_ns,
            };
            self.write(slot, &entry);
            added.push(slot);
        }
        fault!("holder.event.noted");
        // From the front: half done, it reads as empty.
        self.memory.clear(RAW, length);
        added
    }

    /// All that are open.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        (0..MOST).filter_map(|slot| Some((slot, self.entry(slot)?)))
    }

    /// How many are open.
    #[must_use]
    pub fn open_count(&self) -> usize {
        MOST - self.free.len()
    }

    /// One of them.
    #[must_use]
    pub fn entry(&self, slot: usize) -> Option<Entry> {
        let at = HEAD + slot * ENTRY;
        let number = |place| u64::from_ne_bytes(self.memory.read(at + place));
        let (open, fd) = (number(0) == 1, number(8) as i32);
        open.then(|| Entry {
            event: Event {
                fd,
                offset: number(24),
                length: number(32),
            },
            layer: number(16) as u32,
            since_ns: number(40),
        })
    }

    fn write(&mut self, slot: usize, entry: &Entry) {
        let at = HEAD + slot * ENTRY;
        let numbers = [
            entry.event.fd as u64,
            u64::from(entry.layer),
            entry.event.offset,
            entry.event.length,
            entry.since_ns,
        ];
        for (place, number) in numbers.iter().enumerate() {
            self.memory
                .write(at + 8 * (place + 1), &number.to_ne_bytes());
        }
        // The word that makes it one comes last.
        self.memory.write(at, &1u64.to_ne_bytes());
    }

    /// An entry has been answered.
    pub fn clear(&mut self, slot: usize) {
        self.memory.write(HEAD + slot * ENTRY, &0u64.to_ne_bytes());
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(fd: i32, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; EVENT];
        bytes[..4].copy_from_slice(&(EVENT as u32).to_ne_bytes());
        bytes[16..20].copy_from_slice(&fd.to_ne_bytes());
        bytes[24] = 6;
        bytes[26..28].copy_from_slice(&24u16.to_ne_bytes());
        bytes[32..40].copy_from_slice(&offset.to_ne_bytes());
        bytes[40..48].copy_from_slice(&4096u64.to_ne_bytes());
        bytes
    }

    fn successor(journal: &Journal) -> Journal {
        let file = journal.file().try_clone_to_owned().expect("a copy");
        Journal::take_up(file, 7).expect("taken up")
    }

    /// A holder killed right after the kernel wrote events leaves them to its successor, each once, also when that one
    /// is killed as well and when some had become entries already.
    #[test]
    fn nothing_read_is_lost() {
        let mut journal = Journal::new().expect("made");
        let bytes = [raw(5, 0), raw(6, 4096)].concat();
        journal
            .memory
            .bytes_mut(RAW, bytes.len())
            .copy_from_slice(&bytes);
        let event = Event {
            fd: 5,
            offset: 0,
            length: 4096,
        };
        let entry = Entry {
            event,
            layer: 9,
            since_ns: 1,
        };
        journal.write(3, &entry);
        for _ in 0..2 {
            let next = successor(&journal);
            let entries: Vec<Entry> = next.entries().map(|(_, entry)| entry).collect();
            assert_eq!(entries.len(), 2);
            assert!(entries.contains(&entry));
            let other = entries.iter().find(|entry| entry.layer == ANY);
            assert_eq!(other.map(|entry| entry.event.offset), Some(4096));
        }
    }

    /// An answered entry makes room, and is gone for the successor too.
    #[test]
    fn answered_ones_go() {
        let mut journal = Journal::new().expect("made");
        let bytes = raw(5, 0);
        journal
            .memory
            .bytes_mut(RAW, bytes.len())
            .copy_from_slice(&bytes);
        let added = journal.note(bytes.len(), &[], 1, &mut |_| 4);
        assert_eq!(added.len(), 1);
        assert_eq!(journal.entry(added[0]).map(|entry| entry.layer), Some(4));
        journal.clear(added[0]);
        assert_eq!(journal.open_count(), 0);
        assert_eq!(successor(&journal).open_count(), 0);
    }
}
