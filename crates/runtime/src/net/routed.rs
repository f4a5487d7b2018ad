//! The way out for other protocols than TCP: a link from the sandbox's namespace to the operator's uplink. A sandbox has it
//! while its policy asks for one, and nothing of it otherwise.
//!
//! What may pass stands in the packet filters of both ends, which the kernel keeps while no runtime lives. Nothing is
//! remembered here: names and addresses follow from the slot, every step may be repeated, and a link ends with the
//! namespace of its sandbox whatever dies.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use dsec_proto::audit::AuditKind;
use dsec_proto::egress::EgressTable;
use dsec_proto::error::{WireError, WireResult};

use super::place::{connect, disconnect, is_linked, Place};
use super::sockets::inside;
use super::{namespace, plan};
use crate::audit::{note, Counter, What};
use crate::kernel::netlink::{self, Counts};
use crate::node::Node;
use crate::sandbox::{Phase, Sandbox};

/// IDs of groups that the kernel lets ask for echoes end here.
const ECHOING: u32 = 1 << 31;

/// Refuses what this sandbox could never have.
///
/// # Errors
/// `unsupported`.
pub fn check(node: &Node, sandbox: &Sandbox, table: Option<&EgressTable>) -> WireResult<()> {
    let Some(table) = table.filter(|table| !table.routed.is_empty()) else {
        return Ok(());
    };
    if node.config.uplink.is_none() {
        return Err(no_uplink());
    }
    let range = node.config.range(sandbox.tag.borrow().slot);
    if plan::asks_for_echoes(table) && range >= ECHOING {
        let message = "this sandbox's group IDs are above those that may ask for echoes";
        return Err(WireError::new("unsupported", message).in_phase("network"));
    }
    Ok(())
}

/// Gives a sandbox the link that its table asks for, with what may pass it, or takes it away. In force when this returns.
///
/// # Errors
/// `unsupported` on a node without an uplink; `sandbox_gone`; `node_error`.
pub async fn apply(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    table: Option<&EgressTable>,
) -> WireResult<()> {
    let slot = sandbox.tag.borrow().slot;
    let wanted = table.filter(|table| !table.routed.is_empty());
    let uplink = node.config.uplink.as_ref();
    let Some(table) = wanted else {
        let place = uplink.and_then(|uplink| Place::of(&node.config, uplink, slot).ok());
        return take_away(node, sandbox, place).await;
    };
    check(node, sandbox, Some(table))?;
    let uplink = uplink.ok_or_else(no_uplink)?;
    let place = Place::of(&node.config, uplink, slot).map_err(|error| broken(&error))?;
    let machine = netlink::own_addresses().map_err(|error| broken(&error))?;
    let routed = plan::routed(table, place.own, &machine);
    let _one = sandbox.making_network.lock().await;
    let _making = node.routing.read().await;
    node.live(&sandbox.id)?;
    if sandbox.net.borrow().routed.as_ref() == Some(&routed) {
        return Ok(());
    }
    let namespace = namespace(node, sandbox).await?;
    let rules = routed.clone();
    // What comes of it is known only when it is through.
    sandbox.net.borrow_mut().linked(None);
    let work = move || connect(&place, &namespace, &rules);
    let made = node.objects.run(work).await;
    tell(node, sandbox, made.map_err(|error| broken(&error))?);
    sandbox.net.borrow_mut().linked(Some(routed));
    Ok(())
}

async fn take_away(node: &Rc<Node>, sandbox: &Rc<Sandbox>, place: Option<Place>) -> WireResult<()> {
    let _one = sandbox.making_network.lock().await;
    let namespace = namespace(node, sandbox).await?;
    let tried = sandbox.net.borrow().tried;
    sandbox.net.borrow_mut().routed = None;
    let gone = remove(node, place.clone(), namespace, tried, true).await;
    let Some(counts) = gone.map_err(|error| broken(&error))? else {
        return Ok(());
    };
    sandbox.net.borrow_mut().tried = false;
    tell(node, sandbox, counts);
    if let Some(place) = place {
        unguard(node, place).await;
    }
    Ok(())
}

/// `None` where nothing of a link is; `tried`: whether that is not to be looked at.
async fn remove(
    node: &Node,
    place: Option<Place>,
    namespace: Arc<OwnedFd>,
    tried: bool,
    lives: bool,
) -> io::Result<Option<Counts>> {
    let work = move || {
        if !tried && !is_linked(place.as_ref(), &namespace)? {
            return Ok(None);
        }
        disconnect(place.as_ref(), &namespace, lives).map(Some)
    };
    node.objects.run(work).await
}

/// Nothing of the sandbox lives any more: what its link has dropped is told, and the link removed.
pub async fn settle(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    let (egress, slot) = {
        let tag = sandbox.tag.borrow();
        (tag.egress, tag.slot)
    };
    let Some(uplink) = node.config.uplink.as_ref().filter(|_| egress) else {
        return;
    };
    let Ok(place) = Place::of(&node.config, uplink, slot) else {
        return;
    };
    let _one = sandbox.making_network.lock().await;
    let tried = sandbox.net.borrow().tried;
    let gone = match namespace(node, sandbox).await {
        Ok(namespace) => remove(node, Some(place.clone()), namespace, tried, false).await,
        Err(error) => Err(io::Error::other(error.message)),
    };
    match gone {
        Ok(None) => return,
        Ok(Some(counts)) => tell(node, sandbox, counts),
        Err(error) => tracing::error!(sandbox_id = sandbox.id, "its link: {error}"),
    }
    unguard(node, place).await;
}

/// The filter beside the uplink goes with the last link.
async fn unguard(node: &Node, place: Place) {
    let _alone = node.routing.write().await;
    if let Err(error) = node.objects.run(move || place.unguard_last()).await {
        tracing::error!("the filter beside the uplink: {error}");
    }
}

/// Removes links that are nobody's, which a former runtime left, and the filter with the last of them.
pub async fn sweep(node: &Rc<Node>) {
    let Some(uplink) = &node.config.uplink else {
        return;
    };
    let place = match Place::of(&node.config, uplink, 0) {
        Ok(place) => place,
        Err(error) => return tracing::warn!("{error}"),
    };
    let used: Vec<String> = {
        let sandboxes = node.sandboxes.borrow();
        let living = sandboxes
            .values()
            .filter(|sandbox| !matches!(&*sandbox.phase.borrow(), Phase::Ended(_)));
        living
            .map(|sandbox| place.name_of(sandbox.tag.borrow().slot))
            .collect()
    };
    if let Err(error) = node.objects.run(move || place.remove_but(&used)).await {
        tracing::error!("links of former sandboxes: {error}");
    }
}

/// Tells what a sandbox's link has dropped since this was last asked.
pub async fn look(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    if node.config.uplink.is_none() || !sandbox.tag.borrow().egress {
        return;
    }
    // Who changes it at this moment has taken the counts, and tells them before the next one's turn.
    let _one = sandbox.making_network.lock().await;
    let Ok(namespace) = namespace(node, sandbox).await else {
        return;
    };
    let work = move || inside(&namespace, netlink::take_counts);
    match node.objects.run(work).await {
        Ok(counts) => tell(node, sandbox, counts),
        Err(error) => tracing::error!(sandbox_id = sandbox.id, "its link: {error}"),
    }
}

fn tell(node: &Node, sandbox: &Sandbox, counts: Counts) {
    let counted = [
        ("policy", counts.unasked),
        ("source", counts.forged),
        ("connections", counts.full),
    ];
    for (reason, count) in counted {
        let what = What {
            kind: AuditKind::Packet,
            reason,
            name: None,
            exec_id: None,
            counter: Counter::None,
        };
        note(node, sandbox, what, count);
    }
}

fn no_uplink() -> WireError {
    let message = "this node has no way out for other protocols: network.uplink is not set";
    WireError::new("unsupported", message)
        .in_phase("network")
        .with("field", "network")
        .remedy("The node's operator names an interface in its settings, [network.uplink]")
}

fn broken(error: &io::Error) -> WireError {
    WireError::node("network", format!("a link to the uplink: {error}"))
        .remedy("`dsec doctor` says what is wrong with [network.uplink] of the node's settings")
}
