//! A layer that is filled: what is there, what is on its way, who waits.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dsec_fault::fault;
use dsec_proto::filled::Bits;
use dsec_proto::loading::{Fetched, RECORD_LOST};
use tokio::sync::Semaphore;

use crate::index::{manifest, Index, LONGEST_INDEX, LONGEST_MANIFEST};

/// Requests of one layer at once.
const REQUESTS: usize = 16;
const AHEAD: usize = 4;

/// What is shared with the threads that write.
#[derive(Debug)]
pub struct Files {
    /// Where each chunk comes from.
    pub index: Index,
    /// Opened before the mark: its writes wait for nobody.
    pub data: File,
    /// What is filled.
    pub bits: Bits,
    record: File,
    /// Once a flush has failed the kernel forgets what it could not write, and the next one succeeds: what is on disk is
    /// not known any more. The record says so to successors.
    lost: Mutex<bool>,
}

/// One layer.
#[derive(Debug)]
pub struct Layer {
    /// Its number.
    pub number: u32,
    /// Its digest.
    pub digest: String,
    /// Its files.
    pub files: Arc<Files>,
    /// Which store had it last.
    pub store: Cell<usize>,
    /// What has been done since that was last told.
    pub counts: RefCell<Fetched>,
    /// Its share of the requests.
    pub requests: Semaphore,
    /// Of those, for what nobody has asked for yet.
    pub ahead: Semaphore,
    /// Chunks that are being fetched.
    pub flying: RefCell<HashSet<u64>>,
    /// Who waits for a chunk.
    pub waiting: RefCell<HashMap<u64, Vec<u64>>>,
    /// Bytes that the record does not tell of yet.
    pub unrecorded: Cell<u64>,
    /// A flush is under way.
    pub flushing: Cell<bool>,
    /// It is complete, and that has been said or will be.
    pub finished: Cell<bool>,
}

impl Files {
    /// Reads and checks what came with a layer: `layer.json`, `chunks`, `data`, `filled`, the shared bits. Blocks.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(digest: &str, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let fds = <[OwnedFd; 5]>::try_from(fds);
        let [manifest_file, chunks, data, record, shared] =
            fds.map_err(|_| "it came without its files")?;
        let manifest = manifest(digest, &content(manifest_file, LONGEST_MANIFEST)?)?;
        let index = Index::read(&content(chunks, LONGEST_INDEX)?, &manifest)?;
        let data = File::from(data);
        let size = data.metadata().map_err(|error| error.to_string())?.len();
        if size != index.size {
            return Err(format!("data has {size} bytes, not {}", index.size));
        }
        let bits = Bits::map(shared.as_fd(), size).map_err(|error| error.to_string())?;
        let record = File::from(record);
        let lost = Mutex::new(says_lost(&record).map_err(|error| error.to_string())?);
        Ok(Self {
            index,
            data,
            bits,
            record,
            lost,
        })
    }

    /// Brings what is filled to disk, and then says so there: a crash of the machine never leaves a record that claims
    /// more than there is. Blocks.
    ///
    /// # Errors
    /// The errno.
    pub fn flush(&self) -> io::Result<()> {
        let record = self.bits.record();
        let _written = self.synced()?;
        fault!("fetcher.flush.synced");
        self.record.write_all_at(&record, 0)?;
        fault!("fetcher.flush.recorded");
        self.record.sync_data()
    }

    /// Brings what is filled to disk. Blocks.
    ///
    /// # Errors
    /// The errno; for ever, once it has failed.
    pub fn sync(&self) -> io::Result<()> {
        self.synced().map(drop)
    }

    /// One at a time: the kernel reports a failure once, to one of them.
    fn synced(&self) -> io::Result<MutexGuard<'_, bool>> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if *lost {
            return Err(io::Error::other("a former flush failed"));
        }
        if let Err(error) = self.data.sync_data() {
            *lost = true;
            self.record.set_len(0)?;
            self.record.write_all_at(&RECORD_LOST, 0)?;
            self.record.sync_data()?;
            return Err(error);
        }
        Ok(lost)
    }
}

impl Layer {
    /// One of which nothing is on its way.
    #[must_use]
    pub fn new(number: u32, digest: String, files: Files) -> Self {
        Self {
            number,
            digest,
            files: Arc::new(files),
            store: Cell::new(0),
            counts: RefCell::default(),
            requests: Semaphore::new(REQUESTS),
            ahead: Semaphore::new(AHEAD),
            flying: RefCell::default(),
            waiting: RefCell::default(),
            unrecorded: Cell::new(0),
            flushing: Cell::new(false),
            finished: Cell::new(false),
        }
    }
}

fn says_lost(record: &File) -> io::Result<bool> {
    let mut head = [0; RECORD_LOST.len()];
    match record.read_exact_at(&mut head, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| head == RECORD_LOST),
    }
}

/// All of a file, which others may have read before: its position is theirs too.
fn content(file: OwnedFd, longest: u64) -> Result<Vec<u8>, String> {
    let file = File::from(file);
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length > longest {
        return Err(format!("a file is longer than {longest} bytes"));
    }
    let mut bytes = vec![0; length as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    read.map(|()| bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(data: File, record: &File) -> Files {
        let (bits, _) = Bits::new(1, &[]).expect("made");
        bits.set(0);
        Files {
            index: Index {
                blobs: Vec::new(),
                chunks: Vec::new(),
                size: 1,
            },
            data,
            bits,
            record: record.try_clone().expect("a copy"),
            lost: Mutex::new(says_lost(record).expect("read")),
        }
    }

    fn memory() -> File {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("made")
            .into()
    }

    /// A flush that failed takes the record with it, and neither this fetcher nor its successor claims anything again.
    #[test]
    fn a_failed_flush_is_not_forgotten() {
        let record = memory();
        files(memory(), &record).flush().expect("flushed");
        assert!(record.metadata().expect("there").len() > 8, "it claims");
        // What cannot be synced: the other end of it is irrelevant.
        let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
        let failing = files(File::from(pipe), &record);
        failing.flush().expect_err("not synced");
        assert_eq!(record.metadata().expect("there").len(), 8);
        failing.sync().expect_err("not forgotten");
        let successor = files(memory(), &record);
        successor.sync().expect_err("not forgotten");
        successor.flush().expect_err("not forgotten");
        assert_eq!(record.metadata().expect("there").len(), 8);
    }
}
