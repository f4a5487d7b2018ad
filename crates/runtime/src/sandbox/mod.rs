//! Sandboxes: made, watched, ended, forgotten.

pub mod create;
pub mod end;

pub use create::{create, digest_bytes};
pub use end::{end, end_with, forget, init_ended, stop};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use dsec_proto::keeper::Call;
use dsec_proto::runtime::{SandboxEnd, SandboxStarted, SandboxState, Usage};
use tokio::sync::{Mutex, Notify, Semaphore};

use crate::audit::calls::Budget;
use crate::audit::Book;
use crate::exec::Exec;
use crate::groups::{Leaf, SlotGroups, WarmLeaf};
use crate::kernel::btrfs::Pool;
use crate::kernel::sys;
use crate::memory::Integral;
use crate::net::Net;
use crate::node::Node;
use crate::tag::{sandbox_object, SandboxTag, Tag};
use crate::timers::Timer;

/// Most execs that are on their way into one sandbox at once.
const LAUNCHES: usize = 48;

/// Where a sandbox is in its life.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Being made.
    Creating,
    /// Made.
    Running,
    /// Being ended.
    Ending,
    /// Ended.
    Ended(SandboxEnd),
    /// Could not be made.
    Failed(dsec_proto::error::WireError),
}

/// One sandbox.
pub struct Sandbox {
    /// Its ID.
    pub id: String,
    /// Its groups.
    pub groups: SlotGroups,
    /// What the keeper holds of it.
    pub tag: RefCell<SandboxTag>,
    /// Where it is.
    pub phase: RefCell<Phase>,
    /// Told at every change of the phase, and when an exec starts or ends.
    pub changed: Notify,
    /// CLOCK_BOOTTIME.
    pub started_ns: Cell<u64>,
    /// Microseconds by phase of its making.
    pub phases: RefCell<BTreeMap<String, u64>>,
    /// CLOCK_BOOTTIME.
    last_activity: Cell<u64>,
    /// Streams that are open on it.
    streams: Cell<u32>,
    /// Execs of it that have not ended.
    pub running: Cell<u64>,
    /// Whether it is to stand still.
    pub paused: Cell<bool>,
    /// Memory it had, over time.
    memory: Integral,
    /// When the init was waited for, CLOCK_BOOTTIME.
    pub init_over: Cell<Option<u64>>,
    /// Its own share of the node's launches: one whose files keep them waiting holds up only itself.
    pub launches: Semaphore,
    leaves: RefCell<Leaves>,
    /// Of whoever lets it stand still: a pause, or a snapshot.
    pub still: Mutex<()>,
    /// Exposed ports and endpoints.
    pub net: RefCell<Net>,
    /// Held while its network is made.
    pub making_network: Mutex<()>,
    /// What it tried and did not get.
    pub audit: RefCell<Book>,
    /// How many of its refused calls are still answered at once.
    pub calls: Arc<Budget>,
}

/// The leaves of a sandbox.
struct Leaves {
    /// Those that are clean and free.
    clean: Vec<u16>,
    /// The number of the next new one.
    next: u16,
    /// Those that were used.
    known: HashMap<u16, Rc<WarmLeaf>>,
}

impl Sandbox {
    /// A sandbox in this slot. `next_leaf`: the first leaf that nothing of this sandbox has used.
    pub fn new(
        tag: SandboxTag,
        groups: SlotGroups,
        phase: Phase,
        clean: Vec<u16>,
        next_leaf: u16,
    ) -> Rc<Self> {
        let memory = Integral::default();
        memory.begin(sys::boottime());
        Rc::new(Self {
            id: tag.sandbox_id.clone(),
            groups,
            tag: RefCell::new(tag),
            phase: RefCell::new(phase),
            changed: Notify::new(),
            started_ns: Cell::new(sys::boottime()),
            phases: RefCell::default(),
            last_activity: Cell::new(sys::boottime()),
            streams: Cell::new(0),
            running: Cell::new(0),
            paused: Cell::new(false),
            memory,
            init_over: Cell::new(None),
            launches: Semaphore::new(LAUNCHES),
            leaves: RefCell::new(Leaves {
                clean,
                next: next_leaf,
                known: HashMap::new(),
            }),
            still: Mutex::new(()),
            net: RefCell::default(),
            making_network: Mutex::default(),
            audit: RefCell::default(),
            calls: Arc::default(),
        })
    }

    /// Why it is over, when it is being ended or has ended.
    #[must_use]
    pub fn gone(&self) -> Option<String> {
        match &*self.phase.borrow() {
            Phase::Ended(end) => Some(end.cause.clone()),
            Phase::Ending => Some(
                self.tag
                    .borrow()
                    .cause
                    .clone()
                    .unwrap_or_else(|| "lost".into()),
            ),
            Phase::Failed(_) => Some("lost".into()),
            Phase::Creating | Phase::Running => None,
        }
    }

    /// Whether nothing of it runs any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Ended(_) | Phase::Failed(_))
    }

    /// Moves on and tells everybody.
    pub fn enter(&self, phase: Phase) {
        *self.phase.borrow_mut() = phase;
        if self.is_over() {
            self.leaves.borrow_mut().known.clear();
        }
        self.changed.notify_waiters();
    }

    /// Writes the tag to the keeper.
    pub async fn retag(&self, node: &Node) {
        let tag = Tag::Sandbox(self.tag.borrow().clone());
        write_tag(node, sandbox_object(&self.id), &tag).await;
    }

    /// A leaf of its own for something that runs in it.
    ///
    /// # Errors
    /// The errno.
    pub fn take_leaf(&self, pool: &Pool) -> std::io::Result<(u16, Rc<WarmLeaf>)> {
        let clean = self.leaves.borrow_mut().clean.pop();
        if let Some(index) = clean {
            return Ok((index, self.leaf(pool, index)));
        }
        let index = self.leaves.borrow().next;
        let leaf = self.leaf(pool, index);
        leaf.make()?;
        leaf.reset(true)?;
        self.leaves.borrow_mut().next += 1;
        Ok((index, leaf))
    }

    /// One of its leaves.
    #[must_use]
    pub fn leaf(&self, pool: &Pool, index: u16) -> Rc<WarmLeaf> {
        let mut leaves = self.leaves.borrow_mut();
        let known = leaves.known.entry(index).or_insert_with(|| {
            let disk = pool.counter_of(self.tag.borrow().volume);
            WarmLeaf::new(self.groups.leaf(index), self.groups.pids_events(), disk)
        });
        Rc::clone(known)
    }

    /// Takes a leaf back if it is empty, whatever became of it.
    pub fn give_leaf(&self, pool: &Pool, index: u16) {
        self.give_back(pool, index, true);
    }

    /// Takes a leaf back if it is empty. `killed`: it may have been.
    pub fn give_back(&self, pool: &Pool, index: u16, killed: bool) {
        let leaf = self.leaf(pool, index);
        // Of one that was killed nothing is worth keeping open.
        let empty = if killed {
            Leaf::is_empty(&leaf)
        } else {
            leaf.is_empty()
        };
        if empty && leaf.reset(killed).is_ok() {
            self.leaves.borrow_mut().clean.push(index);
        }
    }

    /// Something happened in it just now.
    pub fn touch(&self) {
        self.last_activity.set(sys::boottime());
    }

    /// A stream on it is open until the result is dropped.
    #[must_use]
    pub fn stream(self: &Rc<Self>) -> OpenStream {
        self.streams.set(self.streams.get() + 1);
        OpenStream(Rc::clone(self))
    }

    /// Execs of it.
    #[must_use]
    pub fn execs(&self, node: &Node) -> Vec<Rc<Exec>> {
        node.execs
            .borrow()
            .values()
            .filter(|exec| exec.sandbox.id == self.id)
            .cloned()
            .collect()
    }

    /// When it will have been idle for long enough, if nothing happens; `None` without such a limit.
    #[must_use]
    pub fn idle_at(&self) -> Option<u64> {
        let idle = self.tag.borrow().idle_ns;
        if idle == 0 {
            return None;
        }
        if self.paused.get() || self.streams.get() > 0 || self.running.get() > 0 {
            self.touch();
        }
        Some(self.last_activity.get() + idle)
    }

    /// Sets its timers.
    pub fn arm(&self, node: &Node) {
        node.set_timer(
            Timer::Lifetime(self.id.clone()),
            self.tag.borrow().lifetime_at,
        );
        if let Some(at) = self.idle_at() {
            node.set_timer(Timer::Idle(self.id.clone()), at);
        }
    }

    /// Takes its timers away.
    pub fn disarm(&self, node: &Node) {
        node.cancel_timer(&Timer::Lifetime(self.id.clone()));
        node.cancel_timer(&Timer::Idle(self.id.clone()));
    }

    /// What it has used.
    #[must_use]
    pub fn usage(&self, node: &Node) -> Usage {
        let tag = self.tag.borrow();
        let mut usage = self.groups.usage(&tag.baseline);
        usage.disk_bytes = node.pool.used_by(tag.volume);
        if self.init_over.get().is_none() {
            self.memory.sample(sys::boottime(), usage.memory_bytes);
        }
        usage.memory_byte_s = self.memory.byte_s();
        usage
    }

    /// It runs since then.
    pub fn began(&self, at: u64) {
        self.started_ns.set(at);
        self.memory.begin(at);
    }

    /// Counts the memory it has now.
    pub fn sample(&self) {
        self.memory.sample(sys::boottime(), self.groups.memory());
    }

    /// Whether it may use the layer of this digest.
    #[must_use]
    pub fn uses_layer(&self, digest: &[u8]) -> bool {
        let over = matches!(&*self.phase.borrow(), Phase::Ended(_) | Phase::Failed(_));
        !over && self.tag.borrow().layers.iter().any(|own| own == digest)
    }

    /// As the edge sees it; `None` while it is being made.
    #[must_use]
    pub fn state(&self) -> Option<SandboxState> {
        let (state, end) = match &*self.phase.borrow() {
            Phase::Creating | Phase::Failed(_) => return None,
            Phase::Running | Phase::Ending => ("running", None),
            Phase::Ended(end) => ("ended", Some(end.clone())),
        };
        Some(SandboxState {
            sandbox_id: self.id.clone(),
            state: state.into(),
            started_at: sys::unix_time(self.started_ns.get()),
            last_activity_at: sys::unix_time(self.last_activity.get()),
            execs_running: self.running.get(),
            paused: self.paused.get() && end.is_none(),
            end,
        })
    }

    /// The answer to its creation.
    #[must_use]
    pub fn started(&self, existing: bool) -> SandboxStarted {
        SandboxStarted {
            sandbox_id: self.id.clone(),
            started_at: sys::unix_time(self.started_ns.get()),
            slot: self.tag.borrow().slot,
            existing,
            phases: self.phases.borrow().clone(),
        }
    }

    /// Waits until `done` says so.
    pub async fn until<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            let mut told = std::pin::pin!(self.changed.notified());
            told.as_mut().enable();
            if let Some(value) = done(self) {
                return value;
            }
            told.await;
        }
    }
}

/// Keeps a sandbox from being idle.
pub struct OpenStream(Rc<Sandbox>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        self.0.touch();
    }
}

/// Writes a tag to the keeper. A refusal means that the object is gone, which its end will tell.
pub async fn write_tag(node: &Node, object_id: String, tag: &Tag) {
    match tag.encode() {
        Ok(tag) => {
            if let Err(refusal) = node
                .keeper
                .tell(
                    Call::Retag {
                        object_id: object_id.clone(),
                        tag,
                    },
                    &[],
                )
                .await
            {
                tracing::warn!(object_id, code = refusal.code, "the tag was not taken");
            }
        }
        Err(error) => tracing::error!(object_id, "{error}"),
    }
}
