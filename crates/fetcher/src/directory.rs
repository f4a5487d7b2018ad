//! A store that is a directory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::fs::{openat2, Mode, OFlags, ResolveFlags, CWD};

use crate::index::{hex, Digest};

/// Blobs that are kept open: on a distributed file system an open is a question over the network.
const OPEN: usize = 256;

/// The directory and some of its blobs.
#[derive(Debug)]
pub struct DirectoryStore {
    root: OwnedFd,
    blobs: Mutex<HashMap<Digest, Arc<File>>>,
}

impl DirectoryStore {
    /// Opens the directory. What lies above it need not be anybody's but root's.
    ///
    /// # Errors
    /// The errno.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            root,
            blobs: Mutex::default(),
        })
    }

    /// Bytes of a blob: fewer where it ends. Blocks.
    ///
    /// # Errors
    /// The errno.
    pub fn read(&self, blob: &Digest, offset: u64, length: usize) -> io::Result<Bytes> {
        let file = self.blob(blob)?;
        let mut bytes = vec![0; length];
        let mut have = 0;
        while have < length {
            match file.read_at(&mut bytes[have..], offset + have as u64) {
                Ok(0) => break,
                Ok(read) => have += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Its file system may have been mounted anew.
                    self.forget(blob);
                    return Err(error);
                }
            }
        }
        bytes.truncate(have);
        Ok(bytes.into())
    }

    /// Opens a blob anew the next time.
    pub fn forget(&self, blob: &Digest) {
        self.blobs().remove(blob);
    }

    fn blobs(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Arc<File>>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blob(&self, blob: &Digest) -> io::Result<Arc<File>> {
        if let Some(file) = self.blobs().get(blob) {
            return Ok(Arc::clone(file));
        }
        let name = format!("blobs/{}", hex(blob));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(&self.root, name, flags, Mode::empty(), beneath)?;
        let file = Arc::new(File::from(opened));
        let mut blobs = self.blobs();
        if blobs.len() >= OPEN {
            blobs.clear();
        }
        blobs.insert(*blob, Arc::clone(&file));
        Ok(file)
    }
}
