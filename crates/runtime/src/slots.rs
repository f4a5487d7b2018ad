//! The slots of a node, made or renewed ahead of time.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::{WireError, WireResult};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::{Config, RANGE};
use crate::groups::Layout;
use crate::slot::{self, Slot};
use crate::workers::Workers;

/// How many are kept ready: a burst of a hundred creates should not have to wait for one.
const READY: usize = 128;

/// While more than half of them are left, new ones wait until no create has come for so long: making one takes the locks
/// that a create needs.
const QUIET: Duration = Duration::from_millis(20);

/// Slots of live sandboxes that are kept for the next one. Those of the others are made anew: each costs descriptors, of
/// which a node with thousands of sandboxes has none to spare.
const LENT: usize = 256;

/// All slots of the node.
pub struct Slots {
    layout: Layout,
    block: Config,
    workers: Workers,
    free: RefCell<VecDeque<(u32, Option<Slot>)>>,
    ready: RefCell<VecDeque<Slot>>,
    /// By number, with the slot itself if it is kept.
    used: RefCell<HashMap<u32, Option<Slot>>>,
    lent: Cell<usize>,
    /// Those of `free` that were kept: asked for by every exec, so not counted each time.
    returned: Cell<usize>,
    wanted: Notify,
    closed: Cell<bool>,
    taken_at: Cell<Instant>,
}

impl Slots {
    /// Slots in which nothing is, but for those in `used`.
    ///
    /// # Errors
    /// When the thread that makes them cannot be started.
    pub fn new(config: &Config, layout: Layout, used: HashSet<u32>) -> io::Result<Rc<Self>> {
        let workers = Workers::start("slots", 1, || Ok(()))?;
        let free = (0..crate::config::MAX_SLOTS)
            .filter(|index| !used.contains(index))
            .map(|index| (index, None))
            .collect();
        let slots = Rc::new(Self {
            layout,
            block: config.clone(),
            workers,
            free: RefCell::new(free),
            ready: RefCell::default(),
            used: RefCell::new(used.into_iter().map(|index| (index, None)).collect()),
            lent: Cell::new(0),
            returned: Cell::new(0),
            wanted: Notify::new(),
            closed: Cell::new(false),
            taken_at: Cell::new(Instant::now()),
        });
        tokio::task::spawn_local(Rc::clone(&slots).keep_ready());
        Ok(slots)
    }

    fn target(&self) -> usize {
        if self.closed.get() {
            return 0;
        }
        let left = (self.block.max_sandboxes as usize).saturating_sub(self.used.borrow().len());
        READY.min(left)
    }

    async fn keep_ready(self: Rc<Self>) {
        loop {
            if self.ready.borrow().len() >= self.target() {
                self.wanted.notified().await;
                continue;
            }
            let quiet_at = self.taken_at.get() + QUIET;
            if self.ready.borrow().len() > self.target() / 2 && Instant::now() < quiet_at {
                tokio::time::sleep_until(quiet_at).await;
                continue;
            }
            match self.one().await {
                Ok(_) if self.closed.get() => {}
                Ok(slot) => self.ready.borrow_mut().push_back(slot),
                Err(error) => {
                    tracing::warn!("a slot could not be prepared: {error}");
                    self.wanted.notified().await;
                }
            }
        }
    }

    async fn one(&self) -> io::Result<Slot> {
        let next = self.free.borrow_mut().pop_front();
        let (index, former) = next.ok_or_else(|| io::Error::other("all ID ranges are in use"))?;
        if former.is_some() {
            self.returned.set(self.returned.get() - 1);
        }
        let (start, groups) = (self.block.range(index), self.layout.slot(index));
        let made = self.workers.run(move || match former {
            Some(slot) => slot.renew(),
            None => Slot::make(index, groups, start, RANGE),
        });
        let made = made.await;
        if made.is_err() {
            self.free.borrow_mut().push_back((index, None));
        }
        made
    }

    /// Takes a slot, ready or made now.
    ///
    /// # Errors
    /// `capacity` when the node has no more; `node_error` when one cannot be made.
    pub async fn take(&self) -> WireResult<Slot> {
        if self.used.borrow().len() >= self.block.max_sandboxes as usize {
            return Err(WireError::new(
                "capacity",
                "this node has as many sandboxes as it is configured for",
            ));
        }
        let ready = self.ready.borrow_mut().pop_front();
        let slot = match ready {
            Some(slot) => slot,
            None => self
                .one()
                .await
                .map_err(|error| WireError::node("slot", error.to_string()))?,
        };
        self.used.borrow_mut().insert(slot.index, None);
        self.taken_at.set(Instant::now());
        self.wanted.notify_one();
        Ok(slot)
    }

    /// Takes back a slot that was not used after all.
    pub fn put_back(&self, slot: Slot) {
        self.used.borrow_mut().remove(&slot.index);
        self.ready.borrow_mut().push_front(slot);
    }

    /// Keeps a slot that a sandbox now has, to be renewed when it is given back.
    pub fn lend(&self, slot: Slot) {
        if self.lent.get() < LENT {
            self.lent.set(self.lent.get() + 1);
            self.used.borrow_mut().insert(slot.index, Some(slot));
        }
    }

    /// Keeps the slot of a sandbox no more: it will be made anew.
    pub fn spoil(&self, index: u32) {
        let former = self.used.borrow_mut().insert(index, None);
        if former.is_some_and(|slot| slot.is_some()) {
            self.lent.set(self.lent.get() - 1);
        }
    }

    /// Takes back the slot of a sandbox that is empty and forgotten.
    pub fn give_back(&self, index: u32) {
        let Some(slot) = self.used.borrow_mut().remove(&index) else {
            return;
        };
        if slot.is_some() {
            self.lent.set(self.lent.get() - 1);
            self.returned.set(self.returned.get() + 1);
        }
        self.free.borrow_mut().push_front((index, slot));
        self.wanted.notify_one();
    }

    /// Descriptors that slots hold open.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        let kept = self.ready.borrow().len() + self.lent.get() + self.returned.get();
        kept as u64 * slot::DESCRIPTORS
    }

    /// (ready, used).
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.ready.borrow().len(), self.used.borrow().len())
    }

    /// Makes no more and lets go of what is ready, for a shutdown.
    pub async fn close(&self) {
        self.closed.set(true);
        // The thread that makes them has one job at a time: after this one there is none.
        self.workers.run(|| ()).await;
        tokio::task::yield_now().await;
        self.ready.borrow_mut().clear();
        self.free.borrow_mut().clear();
        self.returned.set(0);
    }
}
