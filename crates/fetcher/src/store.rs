//! Reading ranges of blobs from where they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::bucket::BucketStore;
use crate::config::Place;
use crate::directory::DirectoryStore;
use crate::index::Digest;

/// A request that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(10);

/// All of a node's stores.
#[derive(Debug)]
pub struct Stores(Vec<Store>);

impl Stores {
    /// Opens them, while this process still may.
    ///
    /// # Errors
    /// What is wrong with one of them, or that there is none.
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
    Directory(Arc<DirectoryStore>),
    Bucket(Arc<BucketStore>),
}

impl Store {
    fn open(place: &Place) -> Result<Self, String> {
        match place {
            Place::Directory { path } => {
                let opened = DirectoryStore::open(path);
                let opened = opened.map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(Self::Directory(Arc::new(opened)))
            }
            Place::Bucket(bucket) => Ok(Self::Bucket(Arc::new(BucketStore::open(bucket)?))),
        }
    }

    fn forget(&self, blob: &Digest) {
        if let Self::Directory(store) = self {
            store.forget(blob);
        }
    }

    async fn read(&self, blob: Digest, offset: u64, length: usize) -> io::Result<Bytes> {
        let reading = async {
            match self {
                Self::Directory(store) => {
                    let store = Arc::clone(store);
                    let read = move || store.read(&blob, offset, length);
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
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }
}
