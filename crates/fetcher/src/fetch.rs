//! One fetch: asked for, checked, written, and tried again while somebody waits.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dsec_fault::fault;
use tokio::sync::mpsc::unbounded_channel;

use crate::fetcher::Fetcher;
use crate::index::hex;
use crate::layer::Layer;
use crate::placing::{Outcome, Stored};
use crate::runs::{runs, Run};

/// Between attempts: the first pause, doubled up to the second.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Fetcher {
    /// Fetches chunks that nobody else fetches.
    pub async fn fetch(self: Rc<Self>, layer: Rc<Layer>, chunks: Vec<u64>) {
        let mut left = chunks;
        let mut once: HashSet<u64> = HashSet::new();
        let mut pause = PAUSE;
        loop {
            let failed = self.attempt(&layer, &left).await;
            let mut missed = false;
            left.clear();
            for (chunk, outcome) in failed {
                match outcome {
                    Outcome::Corrupt if once.insert(chunk) => left.push(chunk),
                    Outcome::Missed if self.is_wanted(&layer, chunk) => {
                        missed = true;
                        left.push(chunk);
                    }
                    // Whoever wants it later begins anew.
                    _ => {
                        layer.flying.borrow_mut().remove(&chunk);
                        self.failed(&layer, chunk);
                    }
                }
            }
            self.grown(&layer);
            if left.is_empty() {
                break;
            }
            layer.counts.borrow_mut().retries += 1;
            if missed {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Returns those that did not come.
    async fn attempt(&self, layer: &Rc<Layer>, chunks: &[u64]) -> Vec<(u64, Outcome)> {
        let mut failed = Vec::new();
        for run in runs(&layer.files.index, chunks) {
            // One layer's readers leave room for those of others.
            let (own, all) = (
                layer.requests.acquire().await,
                self.requests.acquire().await,
            );
            if own.is_ok() && all.is_ok() {
                failed.extend(self.run(layer, &run).await);
            }
        }
        failed
    }

    async fn run(&self, layer: &Layer, run: &Run) -> Vec<(u64, Outcome)> {
        let (stored, store) = match self.stored(layer, run).await {
            Ok(stored) => stored,
            Err(error) => {
                let chunk = run.first;
                tracing::warn!(layer = layer.digest, chunk, "not fetched: {error}");
                return run.chunks().map(|each| (each, Outcome::Missed)).collect();
            }
        };
        fault!("fetcher.fetch.stored");
        let failed = self.place(layer, run, stored).await;
        for (chunk, _) in failed.iter().filter(|(_, what)| *what == Outcome::Corrupt) {
            self.corrupt(layer, *chunk);
            // Another store may have it right.
            layer.store.set(store + 1);
        }
        failed
    }

    /// Has the threads place a run; each chunk is told to be there as soon as it is. Returns those that are not.
    async fn place(&self, layer: &Layer, run: &Run, mut stored: Bytes) -> Vec<(u64, Outcome)> {
        let (told, mut outcomes) = unbounded_channel();
        let chunks = run.chunks().map(|chunk| {
            let length = layer.files.index.chunks[chunk as usize].length as usize;
            let one = Stored {
                files: Arc::clone(&layer.files),
                chunk,
                bytes: stored.split_to(length),
                told: told.clone(),
            };
            (one, self.is_wanted(layer, chunk))
        });
        self.placing.add(chunks);
        drop(told);
        let mut failed = Vec::new();
        while let Some((chunk, outcome)) = outcomes.recv().await {
            match outcome {
                Outcome::Filled => {
                    layer.flying.borrow_mut().remove(&chunk);
                    self.arrived(layer, chunk);
                }
                other => failed.push((chunk, other)),
            }
        }
        failed
    }

    fn corrupt(&self, layer: &Layer, chunk: u64) {
        layer.counts.borrow_mut().corrupt += 1;
        let index = &layer.files.index;
        let blob = index.blobs.get(index.chunks[chunk as usize].blob as usize);
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

    /// What a store has of a run, and which one that was: one request. Of zeros it has nothing.
    async fn stored(&self, layer: &Layer, run: &Run) -> std::io::Result<(Bytes, usize)> {
        let index = &layer.files.index;
        let chunks = &index.chunks[run.first as usize..(run.first + run.count) as usize];
        let length: usize = chunks.iter().map(|chunk| chunk.length as usize).sum();
        if length == 0 {
            return Ok((Bytes::new(), layer.store.get()));
        }
        let blob = index.blobs[chunks[0].blob as usize];
        layer.counts.borrow_mut().requests += 1;
        let (first, offset) = (layer.store.get(), chunks[0].offset);
        let begun = Instant::now();
        let read = self.stores.read(first, blob, offset, length).await;
        let mut counts = layer.counts.borrow_mut();
        counts.took.add(begun.elapsed().as_micros() as u64);
        let (bytes, store) = read?;
        counts.stored_bytes += length as u64;
        layer.store.set(store);
        Ok((bytes, store))
    }
}
