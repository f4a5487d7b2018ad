//! What sandboxes tried and did not get: noted from the evidence that there is, told by `audit.events`.
//!
//! What the network refused stands in its own journal, which the proxy writes ([`crate::net::egress`]).

mod book;
pub mod calls;
mod file;
pub mod limits;

pub use book::{Book, Counter, Told, What};

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::audit::{AuditAsked, AuditRecord, KEPT, LAST};
use dsec_proto::error::WireResult;

use crate::kernel::sys;
use crate::node::Node;
use crate::sandbox::Sandbox;
use book::Moment;

/// Between two looks at what is being gathered.
const TURN: Duration = Duration::from_secs(1);

/// Of all sandboxes together, since this runtime began.
#[derive(Default)]
pub struct Audit {
    /// How often, by kind and reason.
    counts: RefCell<BTreeMap<String, u64>>,
    /// Sandboxes of which something is being gathered.
    open: RefCell<HashSet<String>>,
    /// Told when there is one.
    opened: tokio::sync::Notify,
}

impl Audit {
    /// How often, by kind and reason.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.borrow().clone()
    }
}

fn now() -> Moment {
    let boot_ns = sys::boottime();
    Moment {
        boot_ns,
        unix: sys::unix_time(boot_ns),
    }
}

fn path(node: &Node, sandbox_id: &str) -> PathBuf {
    node.config.audit().join(sandbox_id)
}

/// It happened so often in a sandbox.
pub fn note(node: &Node, sandbox: &Sandbox, what: What, count: u64) {
    if count == 0 {
        return;
    }
    let named = format!("{} {}", what.kind.name(), what.reason);
    *node.audit.counts.borrow_mut().entry(named).or_default() += count;
    let told = sandbox.audit.borrow_mut().note(what, count, now());
    write(node, sandbox, told);
    if node.audit.open.borrow_mut().insert(sandbox.id.clone()) {
        node.audit.opened.notify_one();
    }
}

/// An event that cannot be written is told all the same, for as long as this runtime lives.
fn write(node: &Node, sandbox: &Sandbox, told: Vec<Told>) {
    for Told { event, seen } in told {
        if let Err(error) = file::write(&path(node, &sandbox.id), event, seen) {
            tracing::error!(sandbox_id = sandbox.id, "an event is not kept: {error}");
        }
    }
}

/// Makes events of what is being gathered, for as long as the runtime serves.
pub async fn run(node: Rc<Node>) {
    loop {
        let none = node.audit.open.borrow().is_empty();
        if none {
            node.audit.opened.notified().await;
        }
        tokio::time::sleep(TURN).await;
        let open: Vec<String> = node.audit.open.borrow().iter().cloned().collect();
        for id in open {
            let sandbox = node.sandboxes.borrow().get(&id).cloned();
            let goes_on = sandbox.is_some_and(|sandbox| {
                let told = sandbox.audit.borrow_mut().settle(now(), false);
                write(&node, &sandbox, told);
                let goes_on = sandbox.audit.borrow().is_open();
                goes_on
            });
            if !goes_on {
                node.audit.open.borrow_mut().remove(&id);
            }
        }
    }
}

/// Takes up what a former runtime noted of a sandbox.
#[must_use]
pub fn take_up(node: &Node, sandbox_id: &str) -> Book {
    let (events, seen) = file::read(&path(node, sandbox_id));
    Book::again(events, seen)
}

/// `audit.events`.
///
/// # Errors
/// `not_found`.
pub fn events(node: &Node, asked: &AuditAsked) -> WireResult<AuditRecord> {
    let sandbox = node.sandbox(&asked.sandbox_id)?;
    calls::drain(node);
    if sandbox.gone().is_none() {
        limits::endpoints(node, &sandbox);
    }
    let record = sandbox.audit.borrow().record(asked.from, KEPT);
    Ok(record)
}

/// What is left of it, now that nothing of the sandbox lives any more. `None`: there was nothing.
pub fn settle(node: &Node, sandbox: &Sandbox) -> Option<AuditRecord> {
    calls::drain(node);
    let told = sandbox.audit.borrow_mut().settle(now(), true);
    write(node, sandbox, told);
    let record = sandbox.audit.borrow().record(0, LAST);
    (record.events > 0).then_some(record)
}

/// The edge has the end of a sandbox.
pub fn forget(node: &Node, sandbox_id: &str) {
    let _ = std::fs::remove_file(path(node, sandbox_id));
}

/// Removes what is left of sandboxes that are not known.
pub fn sweep(node: &Node) {
    let entries = std::fs::read_dir(node.config.audit());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let known = name
            .to_str()
            .is_some_and(|name| node.sandboxes.borrow().contains_key(name));
        if !known {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The node goes down.
pub fn close(node: &Node) {
    sweep(node);
    let _ = std::fs::remove_dir(node.config.audit());
}
