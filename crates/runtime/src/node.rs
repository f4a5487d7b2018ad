//! The node's state: what lives, found by its ID. One thread owns it; tasks share it by `Rc`.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::runtime::{NodeStats, RuntimeEvent};
use tokio::sync::{mpsc, Notify, Semaphore};

use crate::config::Config;
use crate::exec::Exec;
use crate::groups::{warm, Layout, Warm};
use crate::keeper::Keeper;
use crate::kernel::btrfs::Pool;
use crate::layers::Mounted;
use crate::net::link::ProxyLink;
use crate::output::Budget;
use crate::profiles::Profiles;
use crate::sandbox::{digest_bytes, Sandbox};
use crate::seen::Machine;
use crate::slots::Slots;
use crate::store::Layers;
use crate::timers::{Timer, Timers};
use crate::workers::Workers;

/// Below this a removed subvolume counts as nothing.
pub const COUNTED: u64 = 1 << 20;
/// Descriptors that are left for connections, slots and the process itself.
const SPARE_DESCRIPTORS: u64 = 1500;

/// Everything that a method needs.
pub struct Node {
    /// As `dsec up` wrote it.
    pub config: Config,
    /// The machine's boot.
    pub boot_id: String,
    /// The keeper.
    pub keeper: Rc<Keeper>,
    /// The cgroup hierarchies.
    pub layout: Layout,
    /// Threads in the layers' mount namespace.
    pub objects: Workers,
    /// Which layers can be used.
    pub mounted: Mounted,
    /// Layers; used on those threads.
    pub layers: Arc<Layers>,
    /// The pool; its path is only good on those threads, its counters everywhere.
    pub pool: Pool,
    /// Prepared slots.
    pub slots: Rc<Slots>,
    /// Filters and limits of every process.
    pub profiles: Profiles,
    /// What sandboxes are shown a part of.
    pub machine: Machine,
    /// RLIMIT_NOFILE.
    pub descriptor_limit: u64,
    /// The init's program.
    pub init: OwnedFd,
    /// Live sandboxes, and ended ones until they are forgotten.
    pub sandboxes: RefCell<HashMap<String, Rc<Sandbox>>>,
    /// Execs of those.
    pub execs: RefCell<HashMap<String, Rc<Exec>>>,
    /// Execs on their way into their sandboxes: each has a dozen descriptors open until its program runs.
    pub launches: Semaphore,
    /// Groups of those whose files are open.
    pub warm: Warm,
    /// Descriptors of those that are not released.
    pub held: Cell<u64>,
    /// Kills that came before their exec: (sandbox, exec).
    pub cancelled: RefCell<HashSet<(String, String)>>,
    /// Every deadline.
    pub timers: RefCell<Timers>,
    /// Told when the earliest deadline changes.
    pub timers_changed: Notify,
    /// Subvolumes whose space is not yet back, with what was measured at their end.
    pub pending: RefCell<HashMap<u64, u64>>,
    /// What is kept of finished execs.
    pub budget: RefCell<Budget>,
    /// The edge's subscription.
    pub subscriber: RefCell<Option<mpsc::UnboundedSender<RuntimeEvent>>>,
    /// Tools that run or have ended, by ID.
    pub tools: RefCell<HashMap<String, Rc<crate::tools::Tool>>>,
    /// File operations under way, by their keeper object.
    pub files: RefCell<HashMap<String, tokio::sync::oneshot::Sender<dsec_proto::keeper::Ended>>>,
    /// Watches, by sandbox.
    pub watches: crate::files::counted::Counts,
    /// Transfers under way, by sandbox and ID.
    pub transfers: RefCell<
        HashMap<(String, String), tokio::sync::mpsc::UnboundedSender<crate::files::transfer::Said>>,
    >,
    /// How many there are, by sandbox.
    pub transferring: crate::files::counted::Counts,
    /// Numbers file operations.
    pub next_file: Cell<u64>,
    /// Leases by job.
    pub jobs: RefCell<HashMap<String, crate::tag::JobTag>>,
    /// Disks of ended sandboxes that are kept.
    pub disks: RefCell<HashMap<String, crate::tag::DiskTag>>,
    /// Snapshots that are kept.
    pub snapshots: RefCell<HashMap<String, crate::tag::SnapshotTag>>,
    /// The proxy.
    pub proxy: ProxyLink,
    /// Held by whoever makes a link, and alone by whoever removes what all of them need.
    pub routing: tokio::sync::RwLock<()>,
    /// What sandboxes tried and did not get.
    pub audit: crate::audit::Audit,
    /// Refused calls; `None` where none can be on record.
    pub calls: Option<crate::audit::calls::Calls>,
    /// Set once a shutdown has begun.
    pub closing: Cell<bool>,
}

impl Node {
    /// A sandbox that is known, live or ended.
    ///
    /// # Errors
    /// `not_found`.
    pub fn sandbox(&self, sandbox_id: &str) -> WireResult<Rc<Sandbox>> {
        let found = self.sandboxes.borrow().get(sandbox_id).cloned();
        found.ok_or_else(|| {
            WireError::not_found(format!("there is no sandbox {sandbox_id}")).about(sandbox_id)
        })
    }

    /// A sandbox that runs.
    ///
    /// # Errors
    /// `not_found`, or `sandbox_gone` with its cause.
    pub fn live(&self, sandbox_id: &str) -> WireResult<Rc<Sandbox>> {
        let sandbox = self.sandbox(sandbox_id)?;
        match sandbox.gone() {
            Some(cause) => Err(WireError::gone(sandbox_id, &cause)),
            None => Ok(sandbox),
        }
    }

    /// An exec of a sandbox.
    ///
    /// # Errors
    /// `not_found`.
    pub fn exec(&self, sandbox_id: &str, exec_id: &str) -> WireResult<Rc<Exec>> {
        let found = self
            .execs
            .borrow()
            .get(exec_id)
            .filter(|exec| exec.sandbox.id == sandbox_id)
            .cloned();
        found.ok_or_else(|| {
            WireError::not_found(format!("there is no exec {exec_id}")).about(sandbox_id)
        })
    }

    /// Sets a timer.
    pub fn set_timer(&self, timer: Timer, deadline: u64) {
        let mut timers = self.timers.borrow_mut();
        let first = timers.next().is_none_or(|at| deadline < at);
        timers.set(timer, deadline);
        // Whatever wakes too early sleeps again.
        if first {
            self.timers_changed.notify_one();
        }
    }

    /// Takes a timer away.
    pub fn cancel_timer(&self, timer: &Timer) {
        self.timers.borrow_mut().cancel(timer);
    }

    /// Tells the edge, if it listens.
    pub fn tell(&self, event: RuntimeEvent) {
        if let Some(subscriber) = self.subscriber.borrow().as_ref() {
            let _ = subscriber.send(event);
        }
    }

    /// Counts the space of a removed subvolume until it is back.
    pub fn space_pending(&self, volume: u64, bytes: u64) {
        self.pending
            .borrow_mut()
            .insert(volume, if bytes < COUNTED { 0 } else { bytes });
    }

    /// Refuses what would need more descriptors than there are.
    ///
    /// # Errors
    /// `capacity`.
    pub fn has_descriptors(&self, more: u64) -> WireResult<()> {
        if self.descriptors() + more + SPARE_DESCRIPTORS + warm::reserved(self.descriptor_limit)
            > self.descriptor_limit
        {
            return Err(
                WireError::new("capacity", "the descriptors of this node are used up")
                    .in_phase("descriptors"),
            );
        }
        Ok(())
    }

    /// Whether the refused calls of an exec that begins now are on record: with more than a fifth of the descriptors in
    /// use, the others are for execs, which then take three each and not four.
    #[must_use]
    pub fn records_calls(&self) -> bool {
        self.calls.is_some() && self.descriptors() < self.descriptor_limit / 5
    }

    /// What the keeper holds, which is never less than what the runtime does: a pidfd for each process, a network
    /// namespace for each sandbox, its endpoints' listeners, and the pipes of each exec until it is released.
    fn descriptors(&self) -> u64 {
        self.sandboxes.borrow().len() as u64 * 2
            + self.proxy.descriptors()
            + self.held.get()
            + self.slots.descriptors()
    }

    /// Whether a sandbox is made of this layer, or is being made of it.
    #[must_use]
    pub fn uses_layer(&self, digest: &str) -> bool {
        let digest = digest_bytes(digest);
        let sandboxes = self.sandboxes.borrow();
        sandboxes.values().any(|each| each.uses_layer(&digest))
    }

    /// Figures of the node.
    ///
    /// # Errors
    /// `node_error` when the pool cannot be asked.
    pub async fn stats(&self) -> WireResult<NodeStats> {
        let pool = self.pool.clone();
        let pending: Vec<(u64, u64)> = self
            .pending
            .borrow()
            .iter()
            .map(|(id, bytes)| (*id, *bytes))
            .collect();
        let asked = move || {
            let back: Vec<u64> = pending
                .into_iter()
                .filter(|(id, _)| is_back(&pool, *id))
                .map(|(id, _)| id)
                .collect();
            pool.space().map(|space| (space, back))
        };
        let ((size, used), back) = self
            .objects
            .run(asked)
            .await
            .map_err(|error| WireError::node("pool", error.to_string()))?;
        self.pending.borrow_mut().retain(|id, _| !back.contains(id));
        let (ready, taken) = self.slots.counts();
        let execs = self.execs.borrow();
        Ok(NodeStats {
            sandboxes: self
                .sandboxes
                .borrow()
                .values()
                .filter(|sandbox| sandbox.gone().is_none())
                .count() as u64,
            execs: execs.values().filter(|exec| exec.is_running()).count() as u64,
            pool_bytes: size,
            pool_used_bytes: used,
            pool_pending_bytes: self.pending.borrow().values().sum(),
            slots_ready: ready as u64,
            slots_used: taken as u64,
            descriptors_used: self.descriptors(),
            descriptors_limit: self.descriptor_limit,
            audit: self.audit.counts(),
        })
    }
}

/// Whether the space of a deleted subvolume is free again; its counter goes with it.
fn is_back(pool: &Pool, volume: u64) -> bool {
    match pool.used_by(volume) {
        None => true,
        Some(0) => {
            let _ = pool.drop_counter(volume);
            true
        }
        Some(_) => false,
    }
}
