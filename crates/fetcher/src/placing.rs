//! The threads that check, unpack and write chunks: one for each core, and what somebody waits for comes first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use bytes::Bytes;
use dsec_fault::fault;
use tokio::sync::mpsc::UnboundedSender;

use crate::fill::{self, Decoder};
use crate::layer::Files;

/// Threads on a machine with one core: one may be held up by the disk.
const FEWEST: usize = 2;
const MOST: usize = 16;

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is there, and its bit says so.
    Filled,
    /// Its bytes are others than those of its digest.
    Corrupt,
    /// The store or the disk failed.
    Missed,
}

/// A chunk that has come.
#[derive(Debug)]
pub struct Stored {
    /// Where it belongs.
    pub files: Arc<Files>,
    /// Which one it is.
    pub chunk: u64,
    /// As the store has it.
    pub bytes: Bytes,
    /// Who is told.
    pub told: UnboundedSender<(u64, Outcome)>,
}

#[derive(Debug, Default)]
struct Queues {
    wanted: VecDeque<Stored>,
    ahead: VecDeque<Stored>,
}

#[derive(Debug, Default)]
struct Work {
    queues: Mutex<Queues>,
    more: Condvar,
}

/// The way to the threads.
#[derive(Debug)]
pub struct Placing(Arc<Work>);

impl Placing {
    /// Starts them.
    ///
    /// # Errors
    /// The errno.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(FEWEST, usize::from);
        let work = Arc::new(Work::default());
        for number in 0..cores.clamp(FEWEST, MOST) {
            let (work, mut decoder) = (Arc::clone(&work), Decoder::new()?);
            let body = move || loop {
                let stored = work.next();
                let outcome = place(&stored, &mut decoder);
                let _ = stored.told.send((stored.chunk, outcome));
            };
            let builder = thread::Builder::new().name(format!("placing-{number}"));
            builder.spawn(body)?;
        }
        Ok(Self(work))
    }

    /// Has chunks placed; those that somebody waits for before all others.
    pub fn add(&self, chunks: impl Iterator<Item = (Stored, bool)>) {
        let mut queues = self.0.queues();
        for (stored, wanted) in chunks {
            match wanted {
                true => queues.wanted.push_back(stored),
                false => queues.ahead.push_back(stored),
            }
        }
        self.0.more.notify_all();
    }
}

impl Work {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Stored {
        let mut queues = self.queues();
        loop {
            let first = queues.wanted.pop_front();
            if let Some(stored) = first.or_else(|| queues.ahead.pop_front()) {
                return stored;
            }
            queues = self
                .more
                .wait(queues)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Checks and writes a chunk; it is told to be there only after it is.
fn place(stored: &Stored, decoder: &mut Decoder) -> Outcome {
    let (files, number) = (&stored.files, stored.chunk);
    let chunk = &files.index.chunks[number as usize];
    let length = files.index.length(number);
    let Some(raw) = decoder.decode(chunk, &stored.bytes, length) else {
        return Outcome::Corrupt;
    };
    if let Err(error) = fill::write(&files.data, number, chunk, raw) {
        tracing::error!(chunk = number, "not written: {error}");
        return Outcome::Missed;
    }
    fault!("fetcher.fetch.written");
    files.bits.set(number);
    fault!("fetcher.fetch.set");
    Outcome::Filled
}
