//! How an exec ends: what was written is taken, the facts are read from its group, the edge is told.

use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::WireError;
use dsec_proto::keeper::Ended;
use dsec_proto::runtime::{ExecEnd, ExecUsage, RuntimeEvent};

use super::{pump, stdin, Exec, Phase};
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::tag::exec_object;
use crate::timers::Timer;
use crate::{audit, output, sandbox, session};

/// Within so much of its limit a disk counts as full. btrfs refuses a write when one more tree block (16 KiB) would not fit,
/// and a new file or directory when its reservation of four to five would not: seen 16 KiB and 64 to 72 KiB below the limit.
const BLOCK: u64 = 5 * 16_384;

/// The keeper says that the leader has ended.
pub fn ended(node: &Rc<Node>, exec: &Rc<Exec>, end: Ended) {
    match &*exec.phase.borrow() {
        Phase::Starting => {
            exec.early.replace(Some(end));
            return;
        }
        Phase::Running => {}
        Phase::Ending | Phase::Ended(_) | Phase::Failed(_) => return,
    }
    node.cancel_timer(&Timer::Timeout(exec.id.clone()));
    node.cancel_timer(&Timer::Grace(exec.id.clone()));
    exec.enter(Phase::Ending);
    pump::drain(exec);
    fault!("runtime.exec.drained");
    if exec.tag.borrow().cause.is_some() {
        let (node, exec) = (Rc::clone(node), Rc::clone(exec));
        tokio::task::spawn_local(async move {
            kill_rest(&node, &exec).await;
            pump::drain(&exec);
            conclude(&node, &exec, &end);
        });
    } else {
        conclude(node, exec, &end);
    }
}

/// Everything in the group of an exec that was ended goes with it.
async fn kill_rest(node: &Node, exec: &Exec) {
    let leaf = exec.leaf(node);
    if !leaf.is_empty() {
        exec.killed.set(true);
        let waited = async {
            leaf.kill()?;
            poll::until_empty(&leaf.v2).await
        };
        if let Err(error) = waited.await {
            tracing::error!(exec_id = exec.id, "killing what an exec left: {error}");
        }
    }
}

fn conclude(node: &Rc<Node>, exec: &Rc<Exec>, end: &Ended) {
    let killed = end.signal == Some(libc::SIGKILL) && exec.tag.borrow().cause.is_none();
    // When an init dies, the kernel kills all else first and lets the init be waited for last: its group tells it before.
    let died_with = Some(())
        .filter(|()| killed)
        .and_then(|()| exec.sandbox.gone().or_else(|| without_init(exec)));
    if let Some(failure) = &end.failure {
        let refusal = dsec_proto::keeper::Refusal {
            code: "failed".into(),
            message: failure.message.clone(),
            failure: Some(failure.clone()),
        };
        exec.enter(Phase::Failed(
            super::errors_of(&refusal).about(&exec.sandbox.id),
        ));
    } else if let Some(cause) = died_with {
        exec.enter(Phase::Failed(WireError::gone(&exec.sandbox.id, &cause)));
    } else {
        let facts = facts(node, exec, end);
        audit::calls::drain(node);
        audit::limits::ended(
            node,
            exec,
            &super::id_of_run(exec),
            facts.oom_kills + exec.tag.borrow().baseline.oom_kills,
            &facts.quota_hits,
        );
        fault!("runtime.exec.measured");
        session::over(node, exec, &facts);
        exec.enter(Phase::Ended(facts.clone()));
        node.tell(RuntimeEvent::ExecEnded {
            sandbox_id: exec.sandbox.id.clone(),
            end: facts,
        });
        fault!("runtime.exec.told");
    }
    let (also, of) = (Rc::clone(node), Rc::clone(exec));
    if exec.stdin.borrow().is_some() {
        tokio::task::spawn_local(async move { stdin::close(&also, &of).await });
    }
    exec.sandbox.touch();
    if exec.tag.borrow().is_main {
        sandbox::end(node, &exec.sandbox, "main-exited");
    }
}

fn without_init(exec: &Exec) -> Option<String> {
    exec.sandbox
        .groups
        .init()
        .is_empty()
        .then(|| "init-died".into())
}

fn facts(node: &Node, exec: &Exec, end: &Ended) -> ExecEnd {
    let tag = exec.tag.borrow();
    let leaf = exec.leaf(node);
    let (cpu_ns, memory_peak_bytes) = leaf.used();
    let ended = match (&tag.cause, end.signal) {
        (Some(cause), _) => cause.clone(),
        (None, Some(_)) => "signalled".into(),
        (None, None) => "exited".into(),
    };
    ExecEnd {
        exec_id: exec.id.clone(),
        ended,
        exit_code: end.exit_code,
        signal: end.signal,
        oom_kills: leaf.oom_kills().saturating_sub(tag.baseline.oom_kills),
        quota_hits: quota_hits(node, exec, tag.baseline.pids_refused),
        stdout_total: exec.streams[0].log.total(),
        stderr_total: exec.streams[1].log.total(),
        started_at: sys::unix_time(exec.started_ns.get()),
        duration_ns: end.ended_ns.saturating_sub(exec.started_ns.get()),
        usage: ExecUsage {
            cpu_ns,
            memory_peak_bytes,
        },
        merged: tag.merged,
    }
}

/// Which limits the sandbox has met, of its disk now and of its processes since that count.
#[must_use]
pub fn quota_hits(node: &Node, exec: &Exec, refused_before: u64) -> Vec<String> {
    let sandbox = exec.sandbox.tag.borrow();
    let leaf = exec.leaf(node);
    let used = leaf.disk_used();
    let full = used.is_some_and(|used| used + BLOCK >= sandbox.disk_bytes + sandbox.snapshot_bytes);
    let refused = leaf.pids_refused() > refused_before;
    let hits = [("disk", full), ("pids", refused)];
    hits.iter()
        .filter(|(_, hit)| *hit)
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

/// `exec.ack`: the edge has committed the ends of these.
pub async fn ack(node: &Rc<Node>, exec_ids: &[String]) {
    let known = |exec_id: &String| node.execs.borrow().get(exec_id).cloned();
    let ended = |exec: &Rc<Exec>| !exec.is_running();
    let execs: Vec<Rc<Exec>> = exec_ids.iter().filter_map(known).filter(ended).collect();
    for exec in &execs {
        exec.acked.set(true);
        fault!("runtime.exec.acked");
    }
    settle_all(node, &execs).await;
    for exec in &execs {
        keep_facts(node, exec).await;
    }
}

/// What goes on in the background must not change facts that somebody has been told: not even for a successor.
async fn keep_facts(node: &Node, exec: &Exec) {
    let facts = match &*exec.phase.borrow() {
        Phase::Ended(end) if !exec.released.get() => end.clone(),
        _ => return,
    };
    if exec.tag.borrow_mut().end.replace(facts).is_none() {
        exec.retag(node).await;
    }
}

/// Lets the keeper forget an exec once the edge has its end and nothing can write any more: a process in the background
/// keeps its pipes, and its group.
pub async fn settle(node: &Rc<Node>, exec: &Rc<Exec>) {
    settle_all(node, std::slice::from_ref(exec)).await;
}

/// The keeper is told of all of them at once: one at a time, a busy node would let go more slowly than it takes on.
async fn settle_all(node: &Rc<Node>, execs: &[Rc<Exec>]) {
    let mut going = Vec::new();
    for exec in execs {
        if is_silent(exec) && !exec.is_running() {
            count(node, exec).await;
        }
        if can_go(node, exec) {
            exec.release(node);
            going.push(exec);
        }
    }
    if going.is_empty() {
        return;
    }
    let object = |exec: &&Rc<Exec>| exec_object(&exec.sandbox.id, &exec.id);
    node.keeper.ack(going.iter().map(object).collect()).await;
    fault!("runtime.exec.released");
    for exec in going {
        if exec.sandbox.gone().is_none() {
            exec.sandbox
                .give_back(&node.pool, exec.tag.borrow().leaf, exec.killed.get());
        }
    }
}

/// Whether nothing can write any more.
fn is_silent(exec: &Exec) -> bool {
    let mut streams = exec.streams.iter();
    streams.all(|stream| stream.pipe.borrow().is_none())
}

/// Whether the keeper may forget it. Processes that have closed their pipes and live on go with the sandbox.
fn can_go(node: &Node, exec: &Exec) -> bool {
    if !exec.acked.get() || !is_silent(exec) || exec.released.get() || exec.is_running() {
        return false;
    }
    let leaf = exec.leaf(node);
    exec.sandbox.gone().is_some() || leaf.is_empty()
}

/// Counts what is kept of a finished exec, and shrinks the oldest when that is too much.
async fn count(node: &Rc<Node>, exec: &Rc<Exec>) {
    if exec.counted.replace(true) {
        return;
    }
    let bytes = exec.streams.iter().map(|stream| stream.log.kept()).sum();
    let shrinking = node.budget.borrow_mut().finish(&exec.id, bytes);
    for exec_id in shrinking {
        let known = node.execs.borrow().get(&exec_id).cloned();
        let Some(exec) = known else { continue };
        let directory = node.config.output().join(&exec.sandbox.id).join(&exec.id);
        let shrunk = node.objects.run(move || output::shrink(&directory)).await;
        if let Err(error) = shrunk {
            tracing::warn!(exec_id, "its output could not be shrunk: {error}");
        }
        exec.streams.iter().for_each(|stream| stream.log.reload());
    }
}
