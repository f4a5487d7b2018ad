//! A store that is a directory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::fs::{openat2, Mode, OFlags, ResolveFlags, CWD};
use rustix::io::Errno;

use crate::index::{hex, Digest};

/// Blobs that are kept open: on a distributed file system an open is a question over the network.
const OPEN: usize = 256;

/// The directory and some of its blobs.
#[derive(Debug)]
pub struct DirectoryStore {
    path: PathBuf,
    /// None while it is away.
    root: Mutex<Option<Arc<OwnedFd>>>,
    blobs: Mutex<HashMap<Digest, Arc<File>>>,
}

impl DirectoryStore {
    /// Opens the directory; what lies above it need not be anybody's but root's. One that is away is opened when it is
    /// read: by the user that this process has become by then.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let store = Self {
            path,
            root: Mutex::default(),
            blobs: Mutex::default(),
        };
        if let Err(error) = store.root() {
            tracing::warn!(path = %store.path.display(), "a store is away: {error}");
        }
        store
    }

    fn root(&self) -> io::Result<Arc<OwnedFd>> {
        if let Some(root) = self.opened().as_ref() {
            return Ok(Arc::clone(root));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Without the lock: it may hang, and then only whoever reads from this store.
        let opened = rustix::fs::openat(CWD, &self.path, flags, Mode::empty())?;
        let root = Arc::new(opened);
        *self.opened() = Some(Arc::clone(&root));
        Ok(root)
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
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
        let opened = match openat2(&self.root()?, &name, flags, Mode::empty(), beneath) {
            // Its file system has been mounted anew, or its server is gone and somebody will: the directory is another one.
            Err(Errno::STALE | Errno::NOTCONN) => {
                *self.opened() = None;
                openat2(&self.root()?, &name, flags, Mode::empty(), beneath)?
            }
            opened => opened?,
        };
        let file = Arc::new(File::from(opened));
        let mut blobs = self.blobs();
        if blobs.len() >= OPEN {
            blobs.clear();
        }
        blobs.insert(*blob, Arc::clone(&file));
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that was not there at first is found once it is.
    #[test]
    fn away_at_first() {
        let path = std::env::temp_dir().join(format!("dsec-away-{}", std::process::id()));
        let store = DirectoryStore::new(path.clone());
        let blob = [9; 32];
        let away = store.read(&blob, 0, 1).expect_err("away");
        assert_eq!(away.kind(), io::ErrorKind::NotFound);
        std::fs::create_dir_all(path.join("blobs")).expect("made");
        std::fs::write(path.join("blobs").join(hex(&blob)), b"bytes").expect("written");
        assert_eq!(store.read(&blob, 1, 3).expect("read"), "yte");
        std::fs::remove_dir_all(path).expect("removed");
    }
}
