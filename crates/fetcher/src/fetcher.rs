//! What is wanted, fetched, and told. One thread; what blocks is done on others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::loading::{Fetched, FromFetcher, ToFetcher, VERSION};
use tokio::sync::{mpsc, Semaphore};
use tokio::time::Instant;

use crate::layer::{Files, Layer};
use crate::placing::Placing;
use crate::runs::runs;
use crate::store::Stores;

/// Requests at once, of at most 4 MiB of data each.
const REQUESTS: usize = 24;
/// Of those, for what nobody has asked for yet.
const AHEAD: usize = 8;
/// So much is filled before it is recorded, or so long.
const UNRECORDED: u64 = 256 << 20;
const RECORDED: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(250);
/// Between two reports of what was done.
const TOLD: Duration = Duration::from_secs(1);
const EIO: Option<u8> = Some(libc::EIO as u8);

/// Somebody who waits.
#[derive(Debug)]
struct Want {
    id: u64,
    layer: u32,
    left: usize,
    deadline: Instant,
}

/// The state.
#[derive(Debug)]
pub struct Fetcher {
    /// Where chunks come from.
    pub stores: Stores,
    /// Room for requests.
    pub requests: Semaphore,
    /// Who checks and writes.
    pub placing: Placing,
    ahead: Semaphore,
    patience: Duration,
    layers: RefCell<HashMap<u32, Rc<Layer>>>,
    /// By a number of this process: those of holders begin anew with each.
    wants: RefCell<HashMap<u64, Want>>,
    next: Cell<u64>,
    holder: RefCell<Option<mpsc::UnboundedSender<FromFetcher>>>,
}

impl Fetcher {
    /// One without layers.
    #[must_use]
    pub fn new(stores: Stores, placing: Placing, patience: Duration) -> Rc<Self> {
        Rc::new(Self {
            stores,
            placing,
            requests: Semaphore::new(REQUESTS),
            ahead: Semaphore::new(AHEAD),
            patience,
            layers: RefCell::default(),
            wants: RefCell::default(),
            next: Cell::new(1),
            holder: RefCell::default(),
        })
    }

    /// A holder has come: it says everything itself.
    pub fn has_holder(&self) -> mpsc::UnboundedReceiver<FromFetcher> {
        let (out, queue) = mpsc::unbounded_channel();
        self.wants.borrow_mut().clear();
        self.layers.borrow_mut().clear();
        *self.holder.borrow_mut() = Some(out);
        queue
    }

    fn tell(&self, message: FromFetcher) {
        if let Some(holder) = self.holder.borrow().as_ref() {
            let _ = holder.send(message);
        }
    }

    /// Does what the holder says.
    ///
    /// # Errors
    /// When it speaks another version.
    pub async fn hear(self: &Rc<Self>, said: ToFetcher, fds: Vec<OwnedFd>) -> Result<(), String> {
        match said {
            ToFetcher::Hello { version } => {
                self.tell(FromFetcher::Hello { version: VERSION });
                if version != VERSION {
                    return Err(format!("it speaks version {version}"));
                }
            }
            ToFetcher::Layer { layer, digest } => self.take(layer, digest, fds).await,
            ToFetcher::Want {
                id,
                layer,
                offset,
                length,
                waited_ms,
            } => {
                let waited = Duration::from_millis(waited_ms).min(self.patience);
                let deadline = Instant::now() + (self.patience - waited);
                self.want(id, layer, offset, length, deadline);
            }
            ToFetcher::Ahead {
                layer,
                offset,
                length,
            } => self.read_on(layer, offset, length),
            ToFetcher::Drop { layer } => {
                let dropped = self.layers.borrow_mut().remove(&layer);
                if let Some(layer) = dropped {
                    self.report(&layer);
                    self.flush(&layer);
                }
            }
        }
        Ok(())
    }

    async fn take(self: &Rc<Self>, number: u32, digest: String, fds: Vec<OwnedFd>) {
        let name = digest.clone();
        let opening = tokio::task::spawn_blocking(move || Files::open(&name, fds));
        let opened = opening.await.unwrap_or_else(|_| Err("it died".into()));
        let refused = match opened {
            Ok(files) => {
                let layer = Rc::new(Layer::new(number, digest, files));
                self.layers.borrow_mut().insert(number, Rc::clone(&layer));
                fault!("fetcher.layer.opened");
                self.finish(&layer);
                None
            }
            Err(why) => Some(why),
        };
        self.tell(FromFetcher::Took {
            layer: number,
            refused,
        });
    }

    fn want(self: &Rc<Self>, id: u64, layer: u32, offset: u64, length: u64, deadline: Instant) {
        let layer = self.layers.borrow().get(&layer).cloned();
        let Some(layer) = layer else {
            return self.tell(FromFetcher::Done { id, errno: EIO });
        };
        let bits = &layer.files.bits;
        let touched = bits.touched(offset, length);
        let missing: Vec<u64> = touched.clone().filter(|chunk| !bits.has(*chunk)).collect();
        if missing.is_empty() {
            return self.tell(FromFetcher::Done { id, errno: None });
        }
        let key = self.next.replace(self.next.get() + 1);
        let want = Want {
            id,
            layer: layer.number,
            left: missing.len(),
            deadline,
        };
        self.wants.borrow_mut().insert(key, want);
        for chunk in &missing {
            let mut waiting = layer.waiting.borrow_mut();
            waiting.entry(*chunk).or_default().push(key);
        }
        fault!("fetcher.fetch.wanted");
        let new = layer.lift(&missing);
        for run in runs(&layer.files.index, &new) {
            let chunks = run.chunks().collect();
            tokio::task::spawn_local(Rc::clone(self).fetch(Rc::clone(&layer), chunks));
        }
    }

    fn read_on(self: &Rc<Self>, layer: u32, offset: u64, length: u64) {
        let Some(layer) = self.layers.borrow().get(&layer).cloned() else {
            return;
        };
        let chunks: Vec<u64> = layer.files.bits.touched(offset, length).collect();
        for run in runs(&layer.files.index, &chunks) {
            let (fetcher, layer) = (Rc::clone(self), Rc::clone(&layer));
            tokio::task::spawn_local(fetcher.fetch_ahead(layer, run.chunks().collect()));
        }
    }

    /// Fetches what is likely to be wanted next, unless somebody wants it before it is its turn.
    async fn fetch_ahead(self: Rc<Self>, layer: Rc<Layer>, chunks: Vec<u64>) {
        let (own, all) = (layer.ahead.acquire().await, self.ahead.acquire().await);
        let new = layer.lift(&chunks);
        if own.is_ok() && all.is_ok() && !new.is_empty() {
            Rc::clone(&self).fetch(Rc::clone(&layer), new).await;
        }
    }

    /// A chunk is there: whoever waited for nothing else goes on.
    pub fn arrived(&self, layer: &Layer, chunk: u64) {
        let waiting = layer.waiting.borrow_mut().remove(&chunk);
        let mut wants = self.wants.borrow_mut();
        for key in waiting.unwrap_or_default() {
            let Some(want) = wants.get_mut(&key) else {
                continue;
            };
            want.left -= 1;
            if want.left == 0 {
                let id = want.id;
                wants.remove(&key);
                self.tell(FromFetcher::Done { id, errno: None });
            }
        }
        let filled = layer.files.index.length(chunk) as u64;
        layer.unrecorded.set(layer.unrecorded.get() + filled);
        layer.counts.borrow_mut().fetched_bytes += filled;
    }

    /// A chunk cannot be had: those who wait for it get an error, and only they.
    pub fn failed(&self, layer: &Layer, chunk: u64) {
        let waiting = layer.waiting.borrow_mut().remove(&chunk);
        for key in waiting.unwrap_or_default() {
            self.give_up(key);
        }
    }

    fn give_up(&self, key: u64) {
        let want = self.wants.borrow_mut().remove(&key);
        if let Some(want) = want {
            if let Some(layer) = self.layers.borrow().get(&want.layer) {
                layer.counts.borrow_mut().failed += 1;
            }
            let (id, errno) = (want.id, EIO);
            self.tell(FromFetcher::Done { id, errno });
        }
    }

    /// Tells what has been done about a layer since that was last said.
    fn report(&self, layer: &Layer) {
        let fetched = std::mem::take(&mut *layer.counts.borrow_mut());
        if fetched != Fetched::default() {
            let layer = layer.number;
            self.tell(FromFetcher::Fetched { layer, fetched });
        }
    }

    /// Whether somebody still waits for a chunk.
    #[must_use]
    pub fn is_wanted(&self, layer: &Layer, chunk: u64) -> bool {
        let wants = self.wants.borrow();
        let waiting = layer.waiting.borrow();
        let waiting = waiting.get(&chunk);
        waiting.is_some_and(|keys| keys.iter().any(|key| wants.contains_key(key)))
    }

    /// Some chunks of a layer have come.
    pub fn grown(self: &Rc<Self>, layer: &Rc<Layer>) {
        if layer.unrecorded.get() >= UNRECORDED {
            self.flush(layer);
        }
        self.finish(layer);
    }

    /// Says that a layer is complete, once all of it is on disk.
    fn finish(self: &Rc<Self>, layer: &Rc<Layer>) {
        if !layer.files.bits.complete() || layer.finished.replace(true) {
            return;
        }
        let (fetcher, layer) = (Rc::clone(self), Rc::clone(layer));
        tokio::task::spawn_local(async move {
            let files = Arc::clone(&layer.files);
            let flushed = tokio::task::spawn_blocking(move || files.sync()).await;
            match flushed {
                Ok(Ok(())) => {
                    fault!("fetcher.complete.synced");
                    fetcher.report(&layer);
                    let layer = layer.number;
                    fetcher.tell(FromFetcher::Complete { layer });
                }
                // It stays as it is: another flush would succeed without what this one could not write.
                failed => tracing::error!(layer = layer.digest, "a flush failed: {failed:?}"),
            }
        });
    }

    fn flush(self: &Rc<Self>, layer: &Rc<Layer>) {
        if layer.unrecorded.get() == 0 || layer.flushing.replace(true) {
            return;
        }
        layer.unrecorded.set(0);
        let layer = Rc::clone(layer);
        tokio::task::spawn_local(async move {
            let files = Arc::clone(&layer.files);
            let flushed = tokio::task::spawn_blocking(move || files.flush()).await;
            layer.flushing.set(false);
            if !matches!(flushed, Ok(Ok(()))) {
                tracing::error!(layer = layer.digest, "no record was written: {flushed:?}");
            }
        });
    }

    /// Ends waits that are too long, records, and reports, for as long as the process lives.
    pub async fn tick(self: Rc<Self>) {
        let mut recorded = Instant::now();
        let mut told = Instant::now();
        loop {
            tokio::time::sleep(TICK).await;
            let now = Instant::now();
            let late = |(key, want): (&u64, &Want)| (want.deadline <= now).then_some(*key);
            let late: Vec<u64> = self.wants.borrow().iter().filter_map(late).collect();
            late.into_iter().for_each(|key| self.give_up(key));
            let layers: Vec<Rc<Layer>> = self.layers.borrow().values().cloned().collect();
            if now - told >= TOLD {
                told = now;
                layers.iter().for_each(|layer| self.report(layer));
            }
            if now - recorded >= RECORDED {
                recorded = now;
                for layer in layers.iter().filter(|layer| !layer.finished.get()) {
                    self.flush(layer);
                }
            }
        }
    }
}

impl Layer {
    /// Those of some chunks that are neither there nor on their way; now they are on their way.
    fn lift(&self, chunks: &[u64]) -> Vec<u64> {
        let mut flying = self.flying.borrow_mut();
        let bits = &self.files.bits;
        let new = chunks.iter().copied();
        new.filter(|chunk| !bits.has(*chunk) && flying.insert(*chunk))
            .collect()
    }
}
