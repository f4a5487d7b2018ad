//! Pausing: a sandbox's group stands still, by the v2 tree in every mode. Whatever enters a paused sandbox resumes it.

use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::holding::{Frozen, SandboxFreeze, Thawed};
use dsec_proto::runtime::RuntimeEvent;

use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::sandbox::{Phase, Sandbox};

/// The kernel cannot stop a process in an uninterruptible wait: what is not still after so long is told, not waited for.
const BOUND: Duration = Duration::from_secs(2);

/// `sandbox.freeze`. Idempotent.
///
/// # Errors
/// `not_found`, `sandbox_gone`.
pub async fn freeze(node: &Rc<Node>, asked: SandboxFreeze) -> WireResult<Frozen> {
    let sandbox = node.live(&asked.sandbox_id)?;
    // A child that stood still before its program began would keep its exec's caller waiting.
    let settled = |sandbox: &Sandbox| {
        let made = !matches!(&*sandbox.phase.borrow(), Phase::Creating);
        let begun = sandbox.execs(node).iter().all(|exec| !exec.is_starting());
        (sandbox.gone().is_some() || (made && begun)).then_some(())
    };
    sandbox.until(settled).await;
    let sandbox = node.live(&asked.sandbox_id)?;
    stand_still(node, &sandbox, &asked.cause).await
}

/// Pauses a sandbox that runs, and tells.
///
/// # Errors
/// `node_error` when the kernel refuses.
async fn stand_still(node: &Rc<Node>, sandbox: &Rc<Sandbox>, cause: &str) -> WireResult<Frozen> {
    let broken = |error: std::io::Error| WireError::node("freeze", error.to_string());
    // A snapshot lets it go on when it is taken.
    let _alone = sandbox.still.lock().await;
    if let Some(cause) = sandbox.gone() {
        return Err(WireError::gone(&sandbox.id, &cause));
    }
    let begun = sys::boottime();
    let before = sandbox.paused.replace(true);
    if let Err(error) = sandbox.groups.freeze(true) {
        sandbox.paused.set(before);
        return Err(broken(error));
    }
    fault!("runtime.pause.asked");
    let still = poll::until_frozen(&sandbox.groups.v2);
    let whole = match tokio::time::timeout(BOUND, still).await {
        Ok(Err(error)) if sandbox.gone().is_none() => return Err(broken(error)),
        Ok(frozen) => frozen.is_ok(),
        Err(_) => false,
    };
    let paused = sandbox.paused.get() && sandbox.gone().is_none();
    if paused && !before {
        node.tell(RuntimeEvent::SandboxPaused {
            sandbox_id: sandbox.id.clone(),
            at: sys::unix_time(sys::boottime()),
            cause: cause.into(),
            whole,
        });
    }
    fault!("runtime.pause.told");
    Ok(Frozen {
        paused,
        whole,
        waited_ns: sys::boottime() - begun,
    })
}

/// `sandbox.thaw`. Idempotent.
///
/// # Errors
/// `not_found`, `sandbox_gone`; `node_error` when the kernel refuses.
pub fn thaw(node: &Node, sandbox_id: &str) -> WireResult<Thawed> {
    let sandbox = node.live(sandbox_id)?;
    let resumed = sandbox.paused.get();
    go_on(node, &sandbox, "resumed")?;
    Ok(Thawed { resumed })
}

/// Resumes a sandbox, if it is paused, because of what comes to it now.
///
/// # Errors
/// `node_error` when the kernel refuses.
pub fn go_on(node: &Node, sandbox: &Sandbox, cause: &str) -> WireResult<()> {
    if !sandbox.paused.get() {
        return Ok(());
    }
    sandbox
        .groups
        .freeze(false)
        .map_err(|error| WireError::node("thaw", error.to_string()))?;
    fault!("runtime.resume.thawed");
    sandbox.paused.set(false);
    sandbox.touch();
    node.tell(RuntimeEvent::SandboxResumed {
        sandbox_id: sandbox.id.clone(),
        at: sys::unix_time(sys::boottime()),
        cause: cause.into(),
    });
    fault!("runtime.resume.told");
    Ok(())
}
