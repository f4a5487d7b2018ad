//! Disks of sandboxes that have ended, kept for a while: to look into, or to begin another sandbox with.

use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::holding::{DiskList, KeptDisk};
use dsec_proto::keeper::Call;
use dsec_proto::runtime::RuntimeEvent;

use crate::check;
use crate::kernel::sys;
use crate::node::Node;
use crate::sandbox::create::delete_volume;
use crate::tag::{disk_object, DiskTag, SandboxTag, Tag};
use crate::timers::Timer;

/// Keeps the disk of a sandbox that has just ended; tells until when. `None`: it could not be kept.
pub async fn keep(node: &Rc<Node>, of: &SandboxTag, bytes: u64) -> Option<u64> {
    let until = sys::boottime() + of.keep_ns?;
    let tag = DiskTag {
        sandbox_id: of.sandbox_id.clone(),
        volume: of.volume,
        bytes,
        layers: of.layers.clone(),
        until,
    };
    fault!("runtime.keep.counted");
    let held = Tag::Disk(tag.clone()).encode();
    let put = match held {
        Ok(held) => {
            let call = Call::Put {
                object_id: disk_object(&of.sandbox_id),
                tag: held,
                held: Vec::new(),
            };
            let told = node.keeper.tell(call, &[]).await;
            told.map_err(|refusal| refusal.message)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = put {
        tracing::error!(sandbox_id = of.sandbox_id, "the disk is not kept: {error}");
        return None;
    }
    fault!("runtime.keep.held");
    take_up(node, tag);
    Some(until)
}

/// Takes up a disk, a former runtime's too.
pub fn take_up(node: &Node, tag: DiskTag) {
    node.set_timer(Timer::Disk(tag.sandbox_id.clone()), tag.until);
    node.disks.borrow_mut().insert(tag.sandbox_id.clone(), tag);
}

/// Its time is over.
pub fn over(node: &Rc<Node>, sandbox_id: String) {
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move { remove(&node, &sandbox_id).await });
}

async fn remove(node: &Rc<Node>, sandbox_id: &str) {
    let Some(tag) = node.disks.borrow_mut().remove(sandbox_id) else {
        return;
    };
    node.cancel_timer(&Timer::Disk(sandbox_id.into()));
    node.space_pending(tag.volume, tag.bytes);
    fault!("runtime.unkeep.begun");
    delete_volume(node, sandbox_id).await;
    fault!("runtime.unkeep.deleted");
    node.keeper.ack(vec![disk_object(sandbox_id)]).await;
    fault!("runtime.unkeep.forgotten");
    node.tell(RuntimeEvent::DiskRemoved {
        sandbox_id: sandbox_id.into(),
    });
}

/// `disk.remove`. Harmless for those that are not kept.
///
/// # Errors
/// `invalid_argument`.
pub async fn remove_all(node: &Rc<Node>, sandbox_ids: &[String]) -> WireResult<()> {
    sandbox_ids
        .iter()
        .try_for_each(|id| check::sandbox_id(id))?;
    for id in sandbox_ids {
        remove(node, id).await;
    }
    Ok(())
}

/// `disk.list`.
#[must_use]
pub fn list(node: &Node) -> DiskList {
    let shown = |tag: &DiskTag| KeptDisk {
        sandbox_id: tag.sandbox_id.clone(),
        kept_until: sys::unix_time(tag.until),
        bytes: tag.bytes,
    };
    let mut disks: Vec<KeptDisk> = node.disks.borrow().values().map(shown).collect();
    disks.sort_by(|one, other| one.sandbox_id.cmp(&other.sandbox_id));
    DiskList { disks }
}

/// Whether the disk of that sandbox is kept, over these layers.
///
/// # Errors
/// `not_found`; `conflict` for other layers, over which the disk would mean something else.
pub fn check_kept(
    node: &Node,
    sandbox_id: &str,
    layers: &[serde_bytes::ByteBuf],
) -> WireResult<()> {
    let disks = node.disks.borrow();
    let Some(tag) = disks.get(sandbox_id) else {
        return Err(
            WireError::not_found(format!("no disk of {sandbox_id} is kept")).in_phase("disk"),
        );
    };
    if tag.layers != layers {
        return Err(WireError::new(
            "conflict",
            format!("the disk of {sandbox_id} has other layers"),
        )
        .in_phase("disk"));
    }
    Ok(())
}
