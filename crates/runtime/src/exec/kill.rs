//! How an exec is ended: SIGTERM to the leader's group, and after a grace everything in its cgroup.

use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Call, Refusal};
use dsec_proto::runtime::ExecKill;

use super::{Exec, Phase};
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::tag::{cancelled_object, exec_object, Tag};
use crate::timers::Timer;
use crate::{audit, check};

/// `exec.kill`. Returns when it is confirmed.
///
/// # Errors
/// `invalid_argument` for another cause or a number that is no signal; `sandbox_gone`.
pub async fn kill(node: &Rc<Node>, request: ExecKill) -> WireResult<()> {
    check::sandbox_id(&request.sandbox_id)?;
    check::exec_id(&request.exec_id)?;
    if request.cause != "cancelled" {
        return Err(
            WireError::invalid(format!("not a cause: {:?}", request.cause)).with("field", "cause"),
        );
    }
    let known = node.exec(&request.sandbox_id, &request.exec_id).ok();
    match (known, request.signal) {
        (Some(exec), Some(signal)) => send(node, &exec, signal).await,
        (Some(exec), None) => {
            if !give_up(&exec) {
                terminate(node, &exec, "cancelled", request.grace_ms * 1_000_000).await;
            }
            exec.until(|exec| (!exec.is_running()).then_some(())).await;
            rest(node, &exec).await
        }
        (None, Some(_)) => Err(WireError::not_found(format!(
            "there is no exec {}",
            request.exec_id
        ))),
        (None, None) => remember(node, request).await,
    }
}

/// One that has not entered its sandbox never will. False: it is too late for that.
fn give_up(exec: &Exec) -> bool {
    if exec.waiting.get() {
        exec.tag.borrow_mut().cause = Some("cancelled".into());
        exec.changed.notify_waiters();
    }
    exec.waiting.get()
}

async fn send(node: &Node, exec: &Exec, signal: i32) -> WireResult<()> {
    if !(1..=64).contains(&signal) {
        return Err(WireError::invalid(format!("not a signal: {signal}")).with("field", "signal"));
    }
    match signal_group(node, exec, signal).await {
        Err(refusal) if !matches!(refusal.code.as_str(), "ended" | "unknown_object") => {
            Err(WireError::invalid(refusal.message).with("field", "signal"))
        }
        _ => Ok(()),
    }
}

/// A kill of an exec that has ended reaches what it left in the background.
async fn rest(node: &Node, exec: &Exec) -> WireResult<()> {
    if exec.released.get() || exec.sandbox.gone().is_some() {
        return Ok(());
    }
    let leaf = exec.leaf(node);
    let broken = |error: std::io::Error| WireError::node("kill", error.to_string());
    if !leaf.is_empty() {
        exec.killed.set(true);
        leaf.kill().map_err(broken)?;
        poll::until_empty(&leaf.v2).await.map_err(broken)?;
    }
    Ok(())
}

/// The kill has overtaken its exec.
async fn remember(node: &Rc<Node>, request: ExecKill) -> WireResult<()> {
    node.live(&request.sandbox_id)?;
    let object_id = cancelled_object(&request.sandbox_id, &request.exec_id);
    let tag = Tag::Cancelled.encode().unwrap_or_default();
    node.cancelled
        .borrow_mut()
        .insert((request.sandbox_id, request.exec_id));
    node.keeper
        .tell(
            Call::Put {
                object_id,
                tag,
                held: Vec::new(),
            },
            &[],
        )
        .await
        .map_err(|refusal| WireError::node("kill", refusal.message))
}

/// Begins the end of an exec: the cause is written down, SIGTERM is sent, the grace begins. The first cause stays.
pub async fn terminate(node: &Rc<Node>, exec: &Rc<Exec>, cause: &str, grace_ns: u64) {
    exec.until(|exec| (!exec.is_starting()).then_some(())).await;
    if !matches!(&*exec.phase.borrow(), Phase::Running) {
        return;
    }
    let kill_at = sys::boottime() + grace_ns;
    {
        let mut tag = exec.tag.borrow_mut();
        let first = tag.cause.is_none();
        if first {
            tag.cause = Some(cause.into());
            if cause == "timeout" {
                audit::limits::out_of_time(node, &exec.sandbox, &exec.id);
            }
        }
        // A second, more impatient request shortens the grace, it never lengthens it.
        tag.kill_at = Some(tag.kill_at.map_or(kill_at, |at| at.min(kill_at)));
    }
    exec.retag(node).await;
    fault!("runtime.kill.tagged");
    if !matches!(&*exec.phase.borrow(), Phase::Running) {
        return;
    }
    if grace_ns > 0 {
        let _ = signal_group(node, exec, libc::SIGTERM).await;
    }
    fault!("runtime.kill.signalled");
    if exec.is_running() {
        let at = exec.tag.borrow().kill_at.unwrap_or(kill_at);
        node.set_timer(Timer::Grace(exec.id.clone()), at);
    }
}

/// The time of an exec is over.
pub fn out_of_time(node: &Rc<Node>, exec_id: &str) {
    let Some(exec) = node.execs.borrow().get(exec_id).cloned() else {
        return;
    };
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        let grace_ns = exec.tag.borrow().grace_ns;
        terminate(&node, &exec, "timeout", grace_ns).await;
    });
}

/// The grace of an exec is over: everything in its cgroup is killed. The end comes from the keeper.
pub fn out_of_grace(node: &Rc<Node>, exec_id: &str) {
    let Some(exec) = node.execs.borrow().get(exec_id).cloned() else {
        return;
    };
    let leaf = exec.leaf(node);
    exec.killed.set(true);
    if let Err(error) = leaf.kill() {
        tracing::error!(exec_id, "kill: {error}");
    }
}

/// Signals the process group of the program. One that has ended already is a refusal, and harmless.
///
/// # Errors
/// What the keeper refuses.
pub async fn signal_group(node: &Node, exec: &Exec, signal: i32) -> Result<(), Refusal> {
    let call = Call::Signal {
        object_id: exec_object(&exec.sandbox.id, &exec.id),
        signal,
        group: true,
    };
    node.keeper.tell(call, &[]).await
}
