//! Snapshots of what live sandboxes have written: taken, kept for a while, begun from, removed.

mod taking;

use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Call;
use dsec_proto::runtime::RuntimeEvent;
use dsec_proto::snapshots::{SnapshotList, SnapshotMake, SnapshotState};
use serde_bytes::ByteBuf;

use crate::check;
use crate::kernel::sys;
use crate::node::Node;
use crate::sandbox::create::delete_volume;
use crate::sandbox::{write_tag, Sandbox};
use crate::tag::{snapshot_object, SnapshotTag, Tag};
use crate::timers::Timer;

/// btrfs frees what was deleted within half a minute.
const LOOK: Duration = Duration::from_millis(500);
const MOST_LOOKS: usize = 120;

/// `snapshot.make`: takes one, or answers with the one that has its ID.
///
/// # Errors
/// `not_found`, `sandbox_gone`, `conflict` for an ID of another sandbox's, `capacity`, `node_error`.
pub async fn make(node: &Rc<Node>, asked: SnapshotMake) -> WireResult<SnapshotState> {
    check::snapshot_id(&asked.snapshot_id, &node.config.node)?;
    check::sandbox_id(&asked.sandbox_id)?;
    check::keep(asked.keep_ms)?;
    if let Some(known) = known(node, &asked)? {
        return Ok(known);
    }
    let sandbox = node.live(&asked.sandbox_id)?;
    // One at a time; and nobody pauses it meanwhile.
    let _alone = sandbox.still.lock().await;
    if let Some(known) = known(node, &asked)? {
        return Ok(known);
    }
    let sandbox = node.live(&asked.sandbox_id)?;
    let mut tag = SnapshotTag {
        snapshot_id: asked.snapshot_id.clone(),
        sandbox_id: asked.sandbox_id.clone(),
        volume: 0,
        bytes: 0,
        layers: sandbox.tag.borrow().layers.clone(),
        made: 0,
        until: sys::boottime() + asked.keep_ms * 1_000_000,
        frozen_ns: 0,
        whole: true,
    };
    intend(node, &tag).await?;
    fault!("runtime.snapshot.intended");
    match taking::take(node, &sandbox, &mut tag).await {
        Ok(()) => {
            let object = snapshot_object(&tag.snapshot_id);
            write_tag(node, object, &Tag::Snapshot(tag.clone())).await;
            fault!("runtime.snapshot.held");
            let state = shown(&tag);
            take_up(node, tag);
            Ok(state)
        }
        Err(error) => {
            delete_volume(node, &tag.snapshot_id).await;
            node.keeper
                .ack(vec![snapshot_object(&tag.snapshot_id)])
                .await;
            settle_limit(node, &sandbox);
            match sandbox.gone() {
                Some(cause) => Err(WireError::gone(&sandbox.id, &cause)),
                None => Err(error.about(&sandbox.id)),
            }
        }
    }
}

fn known(node: &Node, asked: &SnapshotMake) -> WireResult<Option<SnapshotState>> {
    match node.snapshots.borrow().get(&asked.snapshot_id) {
        Some(tag) if tag.sandbox_id == asked.sandbox_id => Ok(Some(shown(tag))),
        Some(_) => Err(WireError::new(
            "conflict",
            "the ID is that of another sandbox's snapshot",
        )),
        None => Ok(None),
    }
}

/// The keeper knows of it before anything is made: what a successor finds of it is then swept.
async fn intend(node: &Node, tag: &SnapshotTag) -> WireResult<()> {
    let failed = |error: String| WireError::node("snapshot", error);
    let call = Call::Put {
        object_id: snapshot_object(&tag.snapshot_id),
        tag: Tag::Snapshot(tag.clone()).encode().map_err(failed)?,
        held: Vec::new(),
    };
    let told = node.keeper.tell(call, &[]).await;
    told.map(drop).map_err(|refusal| failed(refusal.message))
}

fn shown(tag: &SnapshotTag) -> SnapshotState {
    SnapshotState {
        snapshot_id: tag.snapshot_id.clone(),
        sandbox_id: tag.sandbox_id.clone(),
        made_at: sys::unix_time(tag.made),
        kept_until: sys::unix_time(tag.until),
        bytes: tag.bytes,
        frozen_ns: tag.frozen_ns,
        whole: tag.whole,
    }
}

/// Takes up a snapshot, a former runtime's too. `false`: it was never made.
pub fn take_up(node: &Node, tag: SnapshotTag) -> bool {
    if tag.made == 0 {
        return false;
    }
    node.set_timer(Timer::Snapshot(tag.snapshot_id.clone()), tag.until);
    node.snapshots
        .borrow_mut()
        .insert(tag.snapshot_id.clone(), tag);
    true
}

/// `snapshot.list`.
#[must_use]
pub fn list(node: &Node) -> SnapshotList {
    let mut snapshots: Vec<_> = node.snapshots.borrow().values().map(shown).collect();
    snapshots.sort_by(|one, other| one.snapshot_id.cmp(&other.snapshot_id));
    SnapshotList { snapshots }
}

/// Its time is over.
pub fn over(node: &Rc<Node>, snapshot_id: String) {
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move { remove(&node, &snapshot_id).await });
}

/// `snapshot.remove`. Harmless for those that are not kept.
///
/// # Errors
/// `invalid_argument`.
pub async fn remove_all(node: &Rc<Node>, snapshot_ids: &[String]) -> WireResult<()> {
    snapshot_ids
        .iter()
        .try_for_each(|id| check::snapshot_id(id, &node.config.node))?;
    for id in snapshot_ids {
        remove(node, id).await;
    }
    Ok(())
}

async fn remove(node: &Rc<Node>, snapshot_id: &str) {
    let Some(tag) = node.snapshots.borrow_mut().remove(snapshot_id) else {
        return;
    };
    node.cancel_timer(&Timer::Snapshot(snapshot_id.into()));
    // What the sandbox had written is counted to the sandbox, or is pending since its end.
    node.space_pending(tag.volume, 0);
    delete_volume(node, snapshot_id).await;
    fault!("runtime.unsnap.deleted");
    node.keeper.ack(vec![snapshot_object(snapshot_id)]).await;
    fault!("runtime.unsnap.forgotten");
    node.tell(RuntimeEvent::SnapshotRemoved {
        snapshot_id: snapshot_id.into(),
    });
    let sandbox = node.sandboxes.borrow().get(&tag.sandbox_id).cloned();
    if let Some(sandbox) = sandbox {
        settle_limit(node, &sandbox);
    }
}

/// Whether that snapshot is kept, over these layers.
///
/// # Errors
/// `not_found`; `conflict` for other layers, over which it would mean something else.
pub fn check_kept(node: &Node, snapshot_id: &str, layers: &[ByteBuf]) -> WireResult<()> {
    let snapshots = node.snapshots.borrow();
    let Some(tag) = snapshots.get(snapshot_id) else {
        return Err(
            WireError::not_found(format!("there is no snapshot {snapshot_id}"))
                .in_phase("snapshot"),
        );
    };
    if tag.layers != layers {
        return Err(WireError::new(
            "conflict",
            format!("the snapshot {snapshot_id} has other layers"),
        )
        .in_phase("snapshot"));
    }
    Ok(())
}

/// A snapshot is gone: the limit of its sandbox goes down once the space is back, so that nothing is refused that fits.
fn settle_limit(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    let (node, sandbox) = (Rc::clone(node), Rc::clone(sandbox));
    tokio::task::spawn_local(async move {
        for _ in 0..MOST_LOOKS {
            let target = held_by_snapshots(&node, &sandbox);
            let (now, limit, volume) = {
                let tag = sandbox.tag.borrow();
                (tag.snapshot_bytes, tag.disk_bytes, tag.volume)
            };
            if target >= now || sandbox.gone().is_some() {
                return;
            }
            let fits = |used| used <= limit.saturating_add(target);
            if node.pool.used_by(volume).is_none_or(fits) {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let _alone = sandbox.still.lock().await;
        set_limit(&node, &sandbox, held_by_snapshots(&node, &sandbox)).await;
    });
}

fn held_by_snapshots(node: &Node, sandbox: &Sandbox) -> u64 {
    let snapshots = node.snapshots.borrow();
    let own = snapshots
        .values()
        .filter(|tag| tag.sandbox_id == sandbox.id);
    own.map(|tag| tag.bytes).max().unwrap_or(0)
}

/// What a snapshot holds stays counted to its sandbox, also where that has written something else instead: so much more
/// it may have on its disk while there is a snapshot.
async fn set_limit(node: &Node, sandbox: &Sandbox, snapshot_bytes: u64) {
    if sandbox.tag.borrow().snapshot_bytes == snapshot_bytes || sandbox.gone().is_some() {
        return;
    }
    sandbox.tag.borrow_mut().snapshot_bytes = snapshot_bytes;
    let (volume, limit) = {
        let tag = sandbox.tag.borrow();
        (tag.volume, tag.disk_bytes.saturating_add(snapshot_bytes))
    };
    sandbox.retag(node).await;
    let pool = node.pool.clone();
    let limited = node.objects.run(move || pool.limit(volume, limit)).await;
    if let Err(error) = limited {
        tracing::error!(sandbox_id = sandbox.id, "the limit of its disk: {error}");
    }
}

/// A former runtime may have died between tag and limit, or while the sandbox stood still for a snapshot.
pub async fn take_up_sandbox(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    let stood = sandbox.tag.borrow().still_for_snapshot;
    if stood {
        taking::go_on_again(node, sandbox).await;
    }
    if sandbox.tag.borrow().snapshot_bytes != 0 {
        settle_limit(node, sandbox);
    }
}
