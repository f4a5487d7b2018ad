//! A layer that is filled: what is there, what is on its way, who waits.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dsec_proto::filled::Bits;

use crate::ahead::Ahead;
use crate::index::{manifest, Index, LONGEST_INDEX, LONGEST_MANIFEST};

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
    /// Its readers' habits.
    pub ahead: RefCell<Ahead>,
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
        Ok(Self {
            index,
            data,
            bits,
            record,
        })
    }

    /// Brings what is filled to disk, and then says so there: a crash of the machine never leaves a record that claims
    /// more than there is. Blocks.
    ///
    /// # Errors
    /// The errno.
    pub fn flush(&self) -> io::Result<()> {
        let record = self.bits.record();
        self.data.sync_data()?;
        self.record.write_all_at(&record, 0)?;
        self.record.sync_data()
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
            ahead: RefCell::default(),
            flying: RefCell::default(),
            waiting: RefCell::default(),
            unrecorded: Cell::new(0),
            flushing: Cell::new(false),
            finished: Cell::new(false),
        }
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
