//! The way out of a sandbox with a network: sockets inside it in which every connection ends, and what the proxy notes
//! of them. From the first table on it has them for good; what may pass is in the table.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use dsec_fault::fault;
use dsec_proto::egress::{EgressCount, EgressRecord, EventsAsked};
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::journal;
use dsec_proto::keeper::Call;
use dsec_proto::runtime::SandboxSpec;

use super::{ledger, namespace, sockets, Net};
use crate::kernel::namespaces::Network;
use crate::node::Node;
use crate::sandbox::Sandbox;
use crate::tag::{egress_object, Tag};

/// Descriptors of a network: two listeners, two sockets of the resolver, the journal.
const DESCRIPTORS: usize = 5;
/// Every name server of the sandbox is the node's: this address is nobody's (RFC 5737).
const RESOLV_CONF: &str = "nameserver 192.0.2.53\noptions timeout:5 attempts:2\n";
/// Events that the record of an ended sandbox keeps.
const LAST: u64 = 64;

/// Descriptors that a sandbox of this kind needs.
#[must_use]
pub fn descriptors(spec: &SandboxSpec) -> u64 {
    spec.egress.as_ref().map_or(0, |_| DESCRIPTORS as u64)
}

/// Takes up the sockets from the keeper, where a former runtime left them, or makes them.
///
/// # Errors
/// `node_error`; `capacity`; `conflict` when a program of the sandbox holds the port of one of them.
pub async fn have(node: &Rc<Node>, sandbox: &Rc<Sandbox>) -> WireResult<()> {
    have_or(node, sandbox, true).await
}

/// Takes up the sockets from the keeper, if it has any.
///
/// # Errors
/// `node_error`.
pub async fn take_up(node: &Rc<Node>, sandbox: &Rc<Sandbox>) -> WireResult<()> {
    if !sandbox.tag.borrow().egress {
        return Ok(());
    }
    have_or(node, sandbox, false).await
}

async fn have_or(node: &Rc<Node>, sandbox: &Rc<Sandbox>, makes: bool) -> WireResult<()> {
    // Two that find none would both make them.
    let _one = sandbox.making_network.lock().await;
    if !sandbox.net.borrow().outward.is_empty() {
        return Ok(());
    }
    let call = Call::Fetch {
        object_id: egress_object(&sandbox.id),
    };
    let held = match node.keeper.call(call, &[]).await {
        Ok((_, held)) => held,
        Err(refusal) if refusal.code == "unknown_object" && !makes => return Ok(()),
        Err(refusal) if refusal.code == "unknown_object" => {
            begin(node, sandbox).await?;
            let namespace = namespace(node, sandbox).await?;
            let made = make(node, &sandbox.id, namespace).await?;
            put(node, sandbox, made).await?
        }
        Err(refusal) => return Err(broken(&refusal.message)),
    };
    has(node, sandbox, held);
    Ok(())
}

/// Takes what [`make`] made beside the rest of a create, in a namespace that was nobody's before.
///
/// # Errors
/// As [`have`].
pub async fn keep(node: &Rc<Node>, sandbox: &Rc<Sandbox>, made: Made) -> WireResult<()> {
    let _one = sandbox.making_network.lock().await;
    let held = put(node, sandbox, made).await?;
    has(node, sandbox, held);
    Ok(())
}

/// Of one that was being ended meanwhile nothing is kept.
fn has(node: &Node, sandbox: &Sandbox, held: Vec<OwnedFd>) {
    let mut net = sandbox.net.borrow_mut();
    if net.outward.is_empty() && sandbox.gone().is_none() {
        node.proxy.holds(held.len() as i64);
        net.outward = held;
    }
}

/// In place: the file is bound into the sandbox.
fn write_resolv_conf(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, RESOLV_CONF.as_bytes())
}

/// A namespace that has had a network is nobody's after this one; said before there is anything in it.
async fn begin(node: &Rc<Node>, sandbox: &Rc<Sandbox>) -> WireResult<()> {
    if !sandbox.tag.borrow().egress {
        node.has_descriptors(DESCRIPTORS as u64)?;
        let index = sandbox.tag.borrow().slot;
        node.slots.spoil(index);
        sandbox.tag.borrow_mut().egress = true;
        sandbox.retag(node).await;
    }
    Ok(())
}

/// A network before the keeper has it: what it consists of.
pub struct Made(Vec<OwnedFd>);

/// Makes one in a namespace, and says in the sandbox's files which name server it has.
///
/// # Errors
/// `node_error`; `conflict` when a program of the sandbox holds the port of one of them.
pub async fn make(node: &Node, sandbox_id: &str, namespace: Arc<OwnedFd>) -> WireResult<Made> {
    let file = node.pool.path.join(sandbox_id).join("etc/resolv.conf");
    let work = move || {
        let mut held = sockets::egress(&namespace)?;
        held.push(ledger::sized("network", journal::BYTES)?);
        write_resolv_conf(&file)?;
        Ok(Made(held))
    };
    let made = node.objects.run(work).await;
    made.map_err(|error| unmade(&error, sandbox_id))
}

/// The network that a sandbox is made with, in the namespace that it will have, in which no program is yet.
///
/// # Errors
/// `node_error`.
pub async fn make_early(
    node: &Node,
    spec: &SandboxSpec,
    network: &Network,
) -> WireResult<Option<Made>> {
    if spec.egress.is_none() {
        return Ok(None);
    }
    let namespace = network.namespace.try_clone();
    let namespace = namespace.map_err(|error| broken(&error))?;
    let made = make(node, &spec.sandbox_id, Arc::new(namespace)).await?;
    Ok(Some(made))
}

async fn put(node: &Node, sandbox: &Sandbox, Made(held): Made) -> WireResult<Vec<OwnedFd>> {
    let tag = Tag::Egress {
        sandbox_id: sandbox.id.clone(),
    };
    let put = Call::Put {
        object_id: egress_object(&sandbox.id),
        tag: tag.encode().map_err(|error| broken(&error))?,
        held: (0..held.len() as u16).collect(),
    };
    let numbers: Vec<_> = held.iter().map(AsRawFd::as_raw_fd).collect();
    fault!("runtime.network.made");
    let kept = node.keeper.tell(put, &numbers).await;
    fault!("runtime.network.held");
    kept.map_err(|refusal| broken(&refusal.message))?;
    Ok(held)
}

/// Why the sockets cannot be made. The sandbox's own programs may have been there first.
fn unmade(error: &io::Error, sandbox_id: &str) -> WireError {
    if error.kind() != io::ErrorKind::AddrInUse {
        return broken(error);
    }
    let port = sockets::EGRESS_PORT;
    let message =
        format!("a program of the sandbox holds port {port}, where the node's network would end");
    WireError::new("conflict", message)
        .in_phase("network")
        .about(sandbox_id)
        .remedy("End the program that holds the port, or give the sandbox its network when it is created")
}

fn broken(error: &impl ToString) -> WireError {
    WireError::node("network", error.to_string())
}

/// What was counted, of a sandbox that has a network.
///
/// # Errors
/// `node_error`.
pub fn count(net: &Net) -> WireResult<Option<EgressCount>> {
    match (net.outward.last(), &net.last_egress) {
        (Some(journal), _) => read(journal, u64::MAX, 0).map(|record| Some(record.count)),
        (None, last) => Ok(last.as_ref().map(|last| last.count.clone())),
    }
}

fn read(journal: &OwnedFd, from: u64, most: u64) -> WireResult<EgressRecord> {
    let journal = File::from(journal.try_clone().map_err(|error| broken(&error))?);
    journal::read(&journal, from, most).map_err(|error| broken(&error))
}

/// `net.events`: what did not pass.
///
/// # Errors
/// `not_found`, `node_error`.
pub async fn events(node: &Rc<Node>, asked: EventsAsked) -> WireResult<EgressRecord> {
    let sandbox = node.sandbox(&asked.sandbox_id)?;
    if sandbox.gone().is_none() {
        take_up(node, &sandbox).await?;
    }
    let net = sandbox.net.borrow();
    match (net.outward.last(), &net.last_egress) {
        (Some(journal), _) => read(journal, asked.from, journal::KEPT),
        (None, Some(last)) => {
            let mut last = last.clone();
            last.latest.retain(|event| event.number >= asked.from);
            Ok(last)
        }
        (None, None) => Ok(EgressRecord::default()),
    }
}

/// What its network has done in all, now that nothing of the sandbox lives any more.
pub async fn settle(node: &Node, sandbox: &Sandbox) -> Option<EgressRecord> {
    if !sandbox.tag.borrow().egress {
        return None;
    }
    let ours = sandbox.net.borrow_mut().outward.pop();
    node.proxy.holds(-i64::from(ours.is_some()));
    let journal = match ours {
        Some(journal) => Some(journal),
        // A former runtime had it, and the keeper has it still.
        None => {
            let call = Call::Fetch {
                object_id: egress_object(&sandbox.id),
            };
            let fetched = node.keeper.call(call, &[]).await;
            fetched.ok().and_then(|(_, mut held)| held.pop())
        }
    };
    let record = match journal.map(|journal| read(&journal, 0, LAST)) {
        Some(Ok(record)) => record,
        Some(Err(error)) => {
            tracing::error!(sandbox_id = sandbox.id, "its journal: {}", error.message);
            EgressRecord::default()
        }
        // It was ended before it had any.
        None => EgressRecord::default(),
    };
    sandbox.net.borrow_mut().last_egress = Some(record.clone());
    Some(record)
}
