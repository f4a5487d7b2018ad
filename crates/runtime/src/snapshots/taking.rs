//! Taking a snapshot: what is in memory is written out while the sandbox runs, then it stands still for the moment in
//! which its subvolume is copied. That it is to stand still is written down first, so that a successor lets it go on.

use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};

use super::set_limit;
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::sandbox::Sandbox;
use crate::tag::SnapshotTag;

/// A process in an uninterruptible wait cannot be stopped: after so long the snapshot is taken, and told to be not whole.
const BOUND: Duration = Duration::from_secs(1);
/// Writing out is repeated until so little is left that it takes no longer than this, or that often.
const QUICK: Duration = Duration::from_millis(15);
const MOST_ROUNDS: usize = 4;
/// A paused sandbox that is resumed at this very moment.
const TRIES: usize = 3;
/// The copy's own limit: nothing writes to it.
const NO_LIMIT: u64 = 1 << 50;

/// Takes it and notes in the tag what there is to know of it.
pub async fn take(node: &Rc<Node>, sandbox: &Rc<Sandbox>, tag: &mut SnapshotTag) -> WireResult<()> {
    let volume = sandbox.tag.borrow().volume;
    let used = node.pool.used_by(volume).unwrap_or(0);
    // From now on what is written anew counts twice.
    let held = sandbox.tag.borrow().snapshot_bytes;
    set_limit(node, sandbox, used.max(held)).await;
    write_out(node, sandbox, tag).await?;
    fault!("runtime.snapshot.flushed");
    for _ in 0..TRIES {
        let paused = sandbox.paused.get();
        copy_still(node, sandbox, tag, paused).await?;
        // Whatever entered a paused one let it run: then it was not still.
        if !paused || sandbox.paused.get() || sandbox.gone().is_some() {
            break;
        }
        delete(node, &tag.snapshot_id).await?;
    }
    tag.bytes = node.pool.used_by(volume).unwrap_or(used).max(used);
    tag.made = sys::boottime();
    set_limit(node, sandbox, tag.bytes).await;
    Ok(())
}

/// A snapshot begins with writing out what is dirty, of this subvolume only: a copy that is thrown away does just that.
async fn write_out(node: &Node, sandbox: &Sandbox, tag: &SnapshotTag) -> WireResult<()> {
    let name = format!("fl-{}", tag.snapshot_id);
    for _ in 0..MOST_ROUNDS {
        let begun = Instant::now();
        delete(node, &name).await?;
        let copied = copy(node, &sandbox.id, &name).await;
        let took = begun.elapsed();
        delete(node, &name).await?;
        let scrap = copied?;
        node.space_pending(scrap, 0);
        if took <= QUICK {
            break;
        }
    }
    Ok(())
}

async fn copy_still(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    tag: &mut SnapshotTag,
    paused: bool,
) -> WireResult<()> {
    if paused {
        let still = poll::until_frozen(&sandbox.groups.v2);
        let still = tokio::time::timeout(Duration::ZERO, still).await;
        tag.whole = still.is_ok_and(|still| still.is_ok());
        tag.volume = copy(node, &sandbox.id, &tag.snapshot_id).await?;
        return Ok(());
    }
    sandbox.tag.borrow_mut().still_for_snapshot = true;
    sandbox.retag(node).await;
    fault!("runtime.snapshot.freezing");
    let begun = sys::boottime();
    let still = stand_still(sandbox).await;
    fault!("runtime.snapshot.frozen");
    let copied = match &still {
        Ok(_) => copy(node, &sandbox.id, &tag.snapshot_id).await,
        Err(error) => Err(error.clone()),
    };
    fault!("runtime.snapshot.taken");
    let thawed = go_on(sandbox);
    tag.frozen_ns = sys::boottime() - begun;
    fault!("runtime.snapshot.thawed");
    sandbox.tag.borrow_mut().still_for_snapshot = false;
    sandbox.retag(node).await;
    tag.whole = still?;
    tag.volume = copied?;
    thawed
}

/// Whether every process stands still.
async fn stand_still(sandbox: &Sandbox) -> WireResult<bool> {
    if let Some(cause) = sandbox.gone() {
        return Err(WireError::gone(&sandbox.id, &cause));
    }
    let frozen = sandbox.groups.freeze(true);
    let waited = match frozen {
        Ok(()) => tokio::time::timeout(BOUND, poll::until_frozen(&sandbox.groups.v2)).await,
        Err(error) => Ok(Err(error)),
    };
    match waited {
        Err(_) => Ok(false),
        Ok(Ok(())) => Ok(true),
        Ok(Err(_)) if sandbox.gone().is_some() => Ok(true),
        Ok(Err(error)) => Err(WireError::node("snapshot", format!("freeze: {error}"))),
    }
}

fn go_on(sandbox: &Sandbox) -> WireResult<()> {
    // The group of one that is gone may be another's by now; what was frozen in it is dead.
    if sandbox.gone().is_some() {
        return Ok(());
    }
    let thawed = sandbox.groups.freeze(false);
    thawed.map_err(|error| WireError::node("snapshot", format!("thaw: {error}")))
}

/// After the death of a runtime that let it stand still for a snapshot.
pub async fn go_on_again(node: &Node, sandbox: &Sandbox) {
    if let Err(error) = go_on(sandbox) {
        tracing::error!(sandbox_id = sandbox.id, "{}", error.message);
    }
    sandbox.paused.set(false);
    sandbox.tag.borrow_mut().still_for_snapshot = false;
    sandbox.retag(node).await;
}

async fn copy(node: &Node, from: &str, name: &str) -> WireResult<u64> {
    let (pool, from, name) = (node.pool.clone(), from.to_owned(), name.to_owned());
    let copied = node
        .objects
        .run(move || pool.copy(&from, &name, NO_LIMIT))
        .await;
    copied.map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull => {
            WireError::new("capacity", "the pool of this node is full").in_phase("snapshot")
        }
        _ => WireError::node("snapshot", format!("the copy: {error}")),
    })
}

async fn delete(node: &Node, name: &str) -> WireResult<()> {
    let (pool, name) = (node.pool.clone(), name.to_owned());
    match node.objects.run(move || pool.delete(&name)).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(WireError::node("snapshot", format!("the copy: {error}")))
        }
        _ => Ok(()),
    }
}
