//! Reading ranges of blobs from where they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::bucket::BucketStore;
use crate::config::Place;
use crate::directory::DirectoryStore;
use crate::index::Digest;

/// A request that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(10);

/// Reads of one directory at once. One that hangs keeps its thread for as long as it likes: no more than these.
pub const AT_ONCE: usize = 24;

/// All of a node's stores.
#[derive(Debug)]
pub struct Stores(Vec<Store>);

impl Stores {
    /// Opens them, while this process still may. A directory that is away is tried again when it is read.
    ///
    /// # Errors
    /// What is wrong with how a bucket is described, or that there is no store.
    pub fn open(places: &[Place]) -> Result<Self, String> {
        let stores: Result<Vec<Store>, String> = places.iter().map(Store::open).collect();
        match stores? {
            none if none.is_empty() => Err("there is no store".into()),
            stores => Ok(Self(stores)),
        }
    }

    /// What is remembered of a blob may be wrong.
    pub fn forget(&self, blob: &Digest) {
        self.0.iter().for_each(|store| store.forget(blob));
    }

    /// Exactly these bytes of a blob, from the first store that has them, beginning with `first`; and which one it was.
    ///
    /// # Errors
    /// Why none has them now: what the last one said.
    pub async fn read(
        &self,
        first: usize,
        blob: Digest,
        offset: u64,
        length: usize,
    ) -> io::Result<(Bytes, usize)> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for step in 0..self.0.len() {
            let place = (first + step) % self.0.len();
            match self.0[place].read(blob, offset, length).await {
                Ok(bytes) => return Ok((bytes, place)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A store, opened.
#[derive(Clone, Debug)]
enum Store {
    Directory(Arc<DirectoryStore>, Arc<Semaphore>),
    Bucket(Arc<BucketStore>),
}

impl Store {
    fn open(place: &Place) -> Result<Self, String> {
        match place {
            Place::Directory { path } => {
                let store = Arc::new(DirectoryStore::new(path.clone()));
                Ok(Self::Directory(store, Arc::new(Semaphore::new(AT_ONCE))))
            }
            Place::Bucket(bucket) => Ok(Self::Bucket(Arc::new(BucketStore::open(bucket)?))),
        }
    }

    fn forget(&self, blob: &Digest) {
        if let Self::Directory(store, _) = self {
            store.forget(blob);
        }
    }

    async fn read(&self, blob: Digest, offset: u64, length: usize) -> io::Result<Bytes> {
        let reading = async {
            match self {
                Self::Directory(store, room) => {
                    let room = Arc::clone(room).try_acquire_owned();
                    let room = room.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
                    let store = Arc::clone(store);
                    let read = move || {
                        let _until_it_returns = room;
                        store.read(&blob, offset, length)
                    };
                    tokio::task::spawn_blocking(read)
                        .await
                        .unwrap_or_else(|_| Err(io::Error::other("the read died")))
                }
                Self::Bucket(store) => store.read(&blob, offset, length).await,
            }
        };
        let late = |_| Err(io::ErrorKind::TimedOut.into());
        let read = tokio::time::timeout(LONGEST, reading).await;
        let bytes = read.unwrap_or_else(late)?;
        if bytes.len() != length {
            // It is cut short; whoever mends it puts another file in its place.
            self.forget(&blob);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory all of whose reads hang is left alone: the next store is asked at once, and the threads are others'.
    #[test]
    fn one_that_hangs_is_left_alone() {
        let path = std::env::temp_dir().join(format!("dsec-hangs-{}", std::process::id()));
        let blob = [7; 32];
        std::fs::create_dir_all(path.join("blobs")).expect("made");
        std::fs::write(path.join("blobs").join(crate::index::hex(&blob)), b"bytes")
            .expect("written");
        let place = Place::Directory { path: path.clone() };
        let stores = Stores::open(&[place]).expect("opened");
        let Store::Directory(_, room) = &stores.0[0] else {
            panic!("another store");
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let hanging = Arc::clone(room).acquire_many_owned(AT_ONCE as u32).await;
            let refused = stores.read(0, blob, 0, 5).await.expect_err("no room");
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
            drop(hanging);
            for _ in 0..2 * AT_ONCE {
                let (bytes, _) = stores.read(0, blob, 0, 5).await.expect("read");
                assert_eq!(bytes, "bytes");
            }
        });
        std::fs::remove_dir_all(path).expect("removed");
    }
}
