//! One fetch: asked for, checked, written, and tried again while somebody waits.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::fetcher::Fetcher;
use crate::fill;
use crate::index::hex;
use crate::layer::{Files, Layer};
use crate::runs::{runs, Run};

/// Between attempts: the first pause, doubled up to the second.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Filled,
    /// Its bytes are others than those of its digest.
    Corrupt,
    /// The store or the disk failed.
    Missed,
}

impl Fetcher {
    /// Fetches chunks that nobody else fetches.
    pub async fn fetch(self: Rc<Self>, layer: Rc<Layer>, chunks: Vec<u64>) {
        let mut left = chunks;
        let mut once: HashSet<u64> = HashSet::new();
        let mut pause = PAUSE;
        loop {
            let outcomes = self.attempt(&layer, &left).await;
            let mut missed = false;
            left.clear();
            for (chunk, outcome) in outcomes {
                match outcome {
                    Outcome::Corrupt if once.insert(chunk) => left.push(chunk),
                    Outcome::Missed if self.is_wanted(&layer, chunk) => {
                        missed = true;
                        left.push(chunk);
                    }
                    outcome => self.land(&layer, chunk, outcome == Outcome::Filled),
                }
            }
            self.grown(&layer);
            if left.is_empty() {
                break;
            }
            self.counts.borrow_mut().retries += 1;
            if missed {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Nobody fetches a chunk any more: it is there, or whoever wants it later begins anew.
    fn land(&self, layer: &Layer, chunk: u64, filled: bool) {
        layer.flying.borrow_mut().remove(&chunk);
        match filled {
            true => self.arrived(layer, chunk),
            false => self.failed(layer, chunk),
        }
    }

    async fn attempt(&self, layer: &Rc<Layer>, chunks: &[u64]) -> Vec<(u64, Outcome)> {
        let mut outcomes = Vec::new();
        for run in runs(&layer.files.index, chunks) {
            let Ok(_room) = self.requests.acquire().await else {
                break;
            };
            outcomes.extend(self.run(layer, &run).await);
        }
        outcomes
    }

    async fn run(&self, layer: &Layer, run: &Run) -> Vec<(u64, Outcome)> {
        let missed = || run.chunks().map(|chunk| (chunk, Outcome::Missed)).collect();
        let (stored, store) = match self.stored(layer, run).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(
                    layer = layer.digest,
                    chunk = run.first,
                    "not fetched: {error}"
                );
                return missed();
            }
        };
        let (files, wanted) = (Arc::clone(&layer.files), run.clone());
        let filling = tokio::task::spawn_blocking(move || place(&files, &wanted, &stored));
        let outcomes = filling.await.unwrap_or_else(|_| missed());
        for (chunk, outcome) in &outcomes {
            if *outcome == Outcome::Corrupt {
                self.counts.borrow_mut().corrupt += 1;
                let index = &layer.files.index;
                let blob = index.blobs.get(index.chunks[*chunk as usize].blob as usize);
                blob.iter().for_each(|blob| self.stores.forget(blob));
                let blob = blob.map(hex);
                tracing::error!(
                    event = "corrupt_chunk",
                    layer = layer.digest,
                    chunk,
                    blob,
                    "the store has other bytes"
                );
            }
        }
        if outcomes.iter().any(|(_, what)| *what == Outcome::Corrupt) {
            // Another store may have it right.
            layer.store.set(store + 1);
        }
        outcomes
    }

    /// What a store has of a run, and which one that was: one request. Of zeros it has nothing.
    async fn stored(&self, layer: &Layer, run: &Run) -> std::io::Result<(Bytes, usize)> {
        let index = &layer.files.index;
        let chunks = &index.chunks[run.first as usize..(run.first + run.count) as usize];
        let length: usize = chunks.iter().map(|chunk| chunk.length as usize).sum();
        if length == 0 {
            return Ok((Bytes::new(), layer.store.get()));
        }
        let blob = index.blobs[chunks[0].blob as usize];
        self.counts.borrow_mut().requests += 1;
        let (first, offset) = (layer.store.get(), chunks[0].offset);
        let (read, store) = self.stores.read(first, blob, offset, length).await?;
        layer.store.set(store);
        self.counts.borrow_mut().stored_bytes += length as u64;
        Ok((read, store))
    }
}

/// Checks and writes the chunks of a run; each is told to be there only after it is. Blocks.
fn place(files: &Files, run: &Run, stored: &[u8]) -> Vec<(u64, Outcome)> {
    let mut rest = stored;
    let mut outcomes = Vec::new();
    for number in run.chunks() {
        let chunk = &files.index.chunks[number as usize];
        let (own, after) = rest.split_at(chunk.length as usize);
        rest = after;
        let outcome = match fill::decode(chunk, own, files.index.length(number)) {
            None => Outcome::Corrupt,
            Some(raw) => match fill::write(&files.data, number, chunk, &raw) {
                Ok(()) => {
                    files.bits.set(number);
                    Outcome::Filled
                }
                Err(error) => {
                    tracing::error!(chunk = number, "not written: {error}");
                    Outcome::Missed
                }
            },
        };
        outcomes.push((number, outcome));
    }
    outcomes
}
