//! How a sandbox ends: the cause is written down, everything is killed, the group is seen to be empty, the storage is
//! let go. The end then waits to be committed by the edge.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Ended;
use dsec_proto::runtime::{Proof, RuntimeEvent, SandboxEnd, SandboxStop};

use super::create::delete_volume;
use super::{Phase, Sandbox};
use crate::kernel::{poll, sys};
use crate::node::{Node, COUNTED};
use crate::tag::{
    cancelled_object, egress_object, endpoints_object, exec_object, sandbox_object, stdin_object,
};
use crate::{audit, check, disks, exec, net, output, pause, timers::Timer};

/// How long a caller waits for the death of what was killed. The kernel lets a process in an uninterruptible wait live on;
/// the end then goes on without the caller.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the output of a main process stays whole after its sandbox: whoever has just made the sandbox, as `dsec run`
/// does, comes to read it only then.
const WHOLE: Duration = Duration::from_secs(30);

/// `sandbox.stop`: ends a sandbox and waits for it, or answers with the end that it had.
///
/// # Errors
/// `not_found`; `node_error` when what was killed does not die.
pub async fn stop(node: &Rc<Node>, stop: SandboxStop) -> WireResult<SandboxEnd> {
    let sandbox = node.sandbox(&stop.sandbox_id)?;
    if !matches!(
        stop.cause.as_str(),
        "stopped" | "idle" | "lifetime" | "lease" | "lost"
    ) {
        return Err(
            WireError::invalid(format!("not a cause: {:?}", stop.cause)).with("field", "cause")
        );
    }
    let made = |sandbox: &Sandbox| match &*sandbox.phase.borrow() {
        Phase::Creating => None,
        Phase::Failed(error) => Some(Err(error.clone())),
        _ => Some(Ok(())),
    };
    sandbox.until(made).await?;
    tracing::info!(
        sandbox_id = sandbox.id,
        cause = stop.cause,
        actor = stop.actor,
        "stop"
    );
    if let Some(keep_ms) = stop.keep_ms {
        check::keep(keep_ms)?;
        if matches!(&*sandbox.phase.borrow(), Phase::Running) {
            sandbox.tag.borrow_mut().keep_ns = Some(keep_ms * 1_000_000);
        }
    }
    end_with(
        node,
        &sandbox,
        &stop.cause,
        Duration::from_millis(stop.grace_ms),
    );
    let ended = |sandbox: &Sandbox| match &*sandbox.phase.borrow() {
        Phase::Ended(end) => Some(end.clone()),
        _ => None,
    };
    let patience = PATIENCE + Duration::from_millis(stop.grace_ms);
    tokio::time::timeout(patience, sandbox.until(ended))
        .await
        .map_err(|_| {
            WireError::node(
                "stop",
                "a process of the sandbox does not die; the end goes on",
            )
            .about(&stop.sandbox_id)
            .remedy("Ask again; look for processes in state D")
        })
}

/// Ends a sandbox for this cause without grace. One that is ending already keeps its first cause.
pub fn end(node: &Rc<Node>, sandbox: &Rc<Sandbox>, cause: &str) {
    end_with(node, sandbox, cause, Duration::ZERO);
}

/// Ends a sandbox for this cause; its main process gets SIGTERM and so much time first.
pub fn end_with(node: &Rc<Node>, sandbox: &Rc<Sandbox>, cause: &str, grace: Duration) {
    if !matches!(&*sandbox.phase.borrow(), Phase::Running) {
        return;
    }
    sandbox.tag.borrow_mut().cause = Some(cause.into());
    sandbox.enter(Phase::Ending);
    let (node, sandbox) = (Rc::clone(node), Rc::clone(sandbox));
    tokio::task::spawn_local(async move { to_the_end(&node, &sandbox, grace).await });
}

/// Takes up the end of a sandbox where a former runtime was interrupted. One that is empty already has ended when this
/// returns.
pub async fn end_again(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    sandbox.enter(Phase::Ending);
    if sandbox.init_over.get().is_some() && sandbox.groups.is_empty() {
        return to_the_end(node, sandbox, Duration::ZERO).await;
    }
    let (node, sandbox) = (Rc::clone(node), Rc::clone(sandbox));
    tokio::task::spawn_local(async move { to_the_end(&node, &sandbox, Duration::ZERO).await });
}

async fn to_the_end(node: &Rc<Node>, sandbox: &Rc<Sandbox>, grace: Duration) {
    sandbox.retag(node).await;
    fault!("runtime.stop.intended");
    if !grace.is_zero() {
        ask_main_to_end(node, sandbox, grace).await;
    }
    let end = kill_all(node, sandbox).await;
    let event = RuntimeEvent::SandboxEnded { end: end.clone() };
    sandbox.enter(Phase::Ended(end));
    node.tell(event);
    fault!("runtime.stop.told");
}

/// Ends a sandbox that nobody was told of.
pub async fn end_quietly(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    sandbox.tag.borrow_mut().cause = Some("stopped".into());
    sandbox.enter(Phase::Ending);
    kill_all(node, sandbox).await;
}

async fn ask_main_to_end(node: &Node, sandbox: &Sandbox, grace: Duration) {
    let main = sandbox.tag.borrow().main.clone();
    let main = main.and_then(|id| node.execs.borrow().get(&id).cloned());
    let Some(main) = main.filter(|main| main.is_running()) else {
        return;
    };
    let _ = pause::go_on(node, sandbox, "stopped");
    let _ = exec::signal_group(node, &main, libc::SIGTERM).await;
    let over = main.until(|main| (!main.is_running()).then_some(()));
    let _ = tokio::time::timeout(grace, over).await;
}

async fn kill_all(node: &Rc<Node>, sandbox: &Rc<Sandbox>) -> SandboxEnd {
    sandbox.disarm(node);
    if sandbox.init_over.get().is_none() {
        sandbox.sample();
    }
    net::over(node, sandbox);
    let killed = sys::boottime();
    loop {
        if let Err(error) = sandbox.groups.kill() {
            tracing::error!(sandbox_id = sandbox.id, "kill: {error}");
        }
        sandbox.until(|sandbox| sandbox.init_over.get()).await;
        if let Err(error) = poll::until_empty(&sandbox.groups.v2).await {
            tracing::error!(
                sandbox_id = sandbox.id,
                "waiting for the empty group: {error}"
            );
        }
        // An exec that was on its way in when the kill came may have arrived after it.
        sandbox
            .until(|sandbox| {
                sandbox
                    .execs(node)
                    .iter()
                    .all(|exec| !exec.is_starting())
                    .then_some(())
            })
            .await;
        if sandbox.groups.is_empty() {
            break;
        }
    }
    sandbox
        .until(|sandbox| {
            sandbox
                .execs(node)
                .iter()
                .all(|exec| !exec.is_running())
                .then_some(())
        })
        .await;
    fault!("runtime.stop.emptied");
    let endpoints = net::settle(node, sandbox).await;
    let egress = net::egress::settle(node, sandbox).await;
    net::routed::settle(node, sandbox).await;
    audit::limits::over(node, sandbox, &endpoints);
    let audit = audit::settle(node, sandbox);
    let ended = sandbox.init_over.get().unwrap_or_else(sys::boottime);
    let execs = sandbox.execs(node);
    for exec in &execs {
        exec.let_go(node);
    }
    let mut usage = sandbox.usage(node);
    usage.pids = 0;
    usage.disk_bytes = Some(note_disk(node, sandbox, usage.disk_bytes.unwrap_or(0)).await);
    let tag = sandbox.tag.borrow().clone();
    let bytes = usage.disk_bytes.unwrap_or(0);
    let kept = disks::keep(node, &tag, bytes).await;
    if kept.is_none() {
        node.space_pending(tag.volume, bytes);
        delete_volume(node, &sandbox.id).await;
    }
    fault!("runtime.stop.deleted");
    let main = tag
        .main
        .and_then(|id| execs.iter().find(|exec| exec.id == id).cloned());
    SandboxEnd {
        sandbox_id: sandbox.id.clone(),
        cause: tag.cause.unwrap_or_else(|| "lost".into()),
        ended_at: sys::unix_time(ended),
        exit_code: main.and_then(|main| main.exit_code()),
        usage,
        proof: Proof {
            processes: 0,
            waited_ns: ended.saturating_sub(killed),
        },
        kept_until: kept.map(sys::unix_time),
        endpoints,
        egress,
        audit,
    }
}

/// What the subvolume holds: counted before it is deleted, and noted where a successor would count something else.
async fn note_disk(node: &Node, sandbox: &Sandbox, counted: u64) -> u64 {
    if let Some(noted) = sandbox.tag.borrow().disk_used {
        return noted;
    }
    if counted >= COUNTED {
        sandbox.tag.borrow_mut().disk_used = Some(counted);
        sandbox.retag(node).await;
    }
    counted
}

/// The keeper says that the init is over: the kernel has killed all else in its PID namespace.
pub fn init_ended(node: &Rc<Node>, sandbox: &Rc<Sandbox>, end_of_init: &Ended) {
    sandbox.init_over.set(Some(end_of_init.ended_ns));
    sandbox.changed.notify_waiters();
    end(node, sandbox, "init-died");
}

/// `sandbox.forget`: the edge has committed the end.
///
/// # Errors
/// `conflict` for one that still runs; nothing of the request is done then.
pub async fn forget(node: &Rc<Node>, sandbox_ids: &[String]) -> WireResult<()> {
    let known = |id: &String| node.sandboxes.borrow().get(id).cloned();
    let sandboxes: Vec<Rc<Sandbox>> = sandbox_ids.iter().filter_map(known).collect();
    if let Some(live) = sandboxes
        .iter()
        .find(|sandbox| !matches!(&*sandbox.phase.borrow(), Phase::Ended(_)))
    {
        return Err(
            WireError::new("conflict", format!("{} has not ended", live.id)).about(&live.id),
        );
    }
    for sandbox in sandboxes {
        let mut objects = Vec::new();
        let execs = sandbox.execs(node);
        for exec in &execs {
            objects.push(exec_object(&sandbox.id, &exec.id));
            objects.push(cancelled_object(&sandbox.id, &exec.id));
            if exec.tag.borrow().stdin {
                objects.push(stdin_object(&sandbox.id, &exec.id));
            }
            node.execs.borrow_mut().remove(&exec.id);
            exec.release(node);
            node.cancel_timer(&Timer::Timeout(exec.id.clone()));
            node.cancel_timer(&Timer::Grace(exec.id.clone()));
        }
        let before: Vec<(String, String)> = node
            .cancelled
            .borrow()
            .iter()
            .filter(|(id, _)| *id == sandbox.id)
            .cloned()
            .collect();
        for pair in before {
            objects.push(cancelled_object(&pair.0, &pair.1));
            node.cancelled.borrow_mut().remove(&pair);
        }
        objects.push(endpoints_object(&sandbox.id));
        objects.push(egress_object(&sandbox.id));
        // The init goes last: a successor that still finds it knows that the rest may be there too.
        node.keeper.ack(objects).await;
        fault!("runtime.stop.forgetting");
        node.keeper.ack(vec![sandbox_object(&sandbox.id)]).await;
        fault!("runtime.stop.forgotten");
        node.sandboxes.borrow_mut().remove(&sandbox.id);
        audit::forget(node, &sandbox.id);
        let ids: Vec<String> = execs.iter().map(|exec| exec.id.clone()).collect();
        node.budget.borrow_mut().forget(&ids);
        node.slots.give_back(sandbox.tag.borrow().slot);
        shrink(node, &sandbox.id, &execs).await;
    }
    Ok(())
}

/// Leaves of each exec's output what a tombstone holds; of the main process's only after a while.
async fn shrink(node: &Rc<Node>, sandbox_id: &str, execs: &[Rc<exec::Exec>]) {
    let directory = node.config.output().join(sandbox_id);
    let main = execs.iter().find(|exec| exec.tag.borrow().is_main);
    let main = main.map(|exec| directory.join(&exec.id));
    if let Some(main) = main.clone() {
        let node = Rc::clone(node);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(WHOLE).await;
            node.objects.run(move || shrink_one(&main)).await;
        });
    }
    let now = move || output_of(&directory, main.as_deref()).for_each(|path| shrink_one(&path));
    node.objects.run(now).await;
}

/// The directories of a sandbox's execs, but this one.
fn output_of<'a>(directory: &Path, but: Option<&'a Path>) -> impl Iterator<Item = PathBuf> + 'a {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(move |path| Some(path.as_path()) != but)
}

fn shrink_one(directory: &Path) {
    match output::shrink(directory) {
        Err(error) if directory.exists() => tracing::warn!("{}: {error}", directory.display()),
        _ => {}
    }
}

/// Shrinks what a former runtime had left whole for a while: all output of sandboxes that are not among these.
pub fn shrink_forgotten(output: &Path, known: &HashSet<String>) {
    for sandbox in output_of(output, None) {
        let name = sandbox.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| known.contains(name)) {
            output_of(&sandbox, None).for_each(|path| shrink_one(&path));
        }
    }
}
