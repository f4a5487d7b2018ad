//! How a run is ended before its end: the shell gives the script up, and what the script has started is killed.
//!
//! The cause is written down first. SIGURG makes the shell drop the script (see [`shell`](super::shell)), SIGTERM goes to
//! the run's processes, SIGKILL follows after the grace. A shell that is not back soon after that (busy in one command of
//! its own, or without our trap) is killed with all that is in its session, which is closed then.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::WireResult;
use dsec_proto::keeper::Call;
use dsec_proto::session::SessionCancel;

use super::book::{Entry, Run};
use super::processes::{self, Process};
use super::{broken, finish, Session};
use crate::exec::{self, Exec};
use crate::kernel::sys;
use crate::node::Node;
use crate::pause;
use crate::tag::exec_object;
use crate::timers::Timer;
use crate::{audit, check};

/// How long the shell may take to come back once nothing holds it up.
const TO_RETURN: u64 = 1_000_000_000;
/// How often the shell is told to give up.
const AGAIN: Duration = Duration::from_millis(50);
/// How often a group is looked through for processes that are still being made.
const PASSES: usize = 64;

/// `session.cancel`. Returns when the run has ended.
///
/// # Errors
/// `not_found`, or that it cannot be written down.
pub async fn cancel(node: &Rc<Node>, asked: SessionCancel) -> WireResult<()> {
    check::exec_id(&asked.run_id)?;
    check::limits(None, asked.grace_ms, 0)?;
    let (exec, session) = match super::find(node, &asked.sandbox_id, &asked.session_id) {
        Err(_) if super::past(node, &asked.sandbox_id, &asked.session_id).is_some() => {
            return Ok(());
        }
        found => found?,
    };
    if session.runs(&asked.run_id) {
        pause::go_on(node, &exec.sandbox, "exec")?;
        interrupt(
            node,
            &exec,
            &session,
            "cancelled",
            asked.grace_ms * 1_000_000,
        )
        .await;
        exec.until(|exec| finish::outcome(exec, &session, &asked.run_id).map(drop))
            .await;
        return Ok(());
    }
    if finish::outcome(&exec, &session, &asked.run_id).is_none() {
        let entry = Entry::Cancelled(asked.run_id);
        session.note(entry).map_err(broken)?;
    }
    Ok(())
}

/// Begins the end of the current run. The first cause stays; a more impatient one shortens the grace.
pub async fn interrupt(
    node: &Rc<Node>,
    exec: &Rc<Exec>,
    session: &Rc<Session>,
    cause: &str,
    grace_ns: u64,
) {
    let Some(run) = session.state.borrow().current.clone() else {
        return;
    };
    let kill_at = sys::boottime() + grace_ns;
    let first = run.stopping.is_none();
    let run_out = cause == "timeout";
    let (cause, kill_at) = match &run.stopping {
        Some((first, at)) => (first.clone(), kill_at.min(*at)),
        None => (cause.to_owned(), kill_at),
    };
    if let Err(error) = session.note(Entry::Stopping { cause, kill_at }) {
        return tracing::error!(exec_id = exec.id, "a run is not interrupted: {error}");
    }
    if first && run_out {
        audit::limits::out_of_time(node, &exec.sandbox, &run.run_id);
    }
    fault!("runtime.interrupt.noted");
    node.set_timer(Timer::RunGrace(exec.id.clone()), kill_at);
    give_up(node, exec).await;
    fault!("runtime.interrupt.told");
    if grace_ns > 0 {
        signal(exec, session, &run, libc::SIGTERM);
    }
    if first {
        let (node, exec, session) = (Rc::clone(node), Rc::clone(exec), Rc::clone(session));
        tokio::task::spawn_local(async move { again(&node, &exec, &session, run.number).await });
    }
}

/// Tells the shell to give the script up.
async fn give_up(node: &Node, exec: &Exec) {
    let call = Call::Signal {
        object_id: exec_object(&exec.sandbox.id, &exec.id),
        signal: libc::SIGURG,
        group: false,
    };
    // A shell that has ended says so by itself.
    let _ = node.keeper.tell(call, &[]).await;
}

/// Tells it again until the run has ended: the first word may have come before the script.
async fn again(node: &Node, exec: &Exec, session: &Session, number: u64) {
    loop {
        tokio::time::sleep(AGAIN).await;
        let over = session.running() != Some(number) || session.returned.get();
        if over || !exec.is_running() {
            return;
        }
        give_up(node, exec).await;
        let run = session.state.borrow().current.clone();
        if let Some(run) = run.filter(|run| session.killed.get() && run.number == number) {
            // What the shell has started between being told and being asked.
            signal(exec, session, &run, libc::SIGKILL);
        }
    }
}

/// Goes on with a run that a former runtime began, and may have begun to interrupt.
pub fn arm(node: &Rc<Node>, exec: &Rc<Exec>, session: &Rc<Session>, run: &Run) {
    match (&run.stopping, run.timeout_at) {
        (Some((_, kill_at)), _) => {
            let (kill_at, number) = (*kill_at, run.number);
            let (node, exec, session) = (Rc::clone(node), Rc::clone(exec), Rc::clone(session));
            tokio::task::spawn_local(async move {
                // Nobody knows whether it was told; it has to be before anything is killed.
                give_up(&node, &exec).await;
                if session.running() == Some(number) {
                    node.set_timer(Timer::RunGrace(exec.id.clone()), kill_at);
                }
                again(&node, &exec, &session, number).await;
            });
        }
        (None, Some(at)) => node.set_timer(Timer::RunTimeout(exec.id.clone()), at),
        (None, None) => {}
    }
}

/// The time of the current run is over.
pub fn out_of_time(node: &Rc<Node>, exec_id: &str) {
    let Some((exec, session)) = known(node, exec_id) else {
        return;
    };
    let node = Rc::clone(node);
    tokio::task::spawn_local(async move {
        let grace_ns = session
            .state
            .borrow()
            .current
            .as_ref()
            .map(|run| run.grace_ns);
        if let Some(grace_ns) = grace_ns {
            interrupt(&node, &exec, &session, "timeout", grace_ns).await;
        }
    });
}

/// The grace of the current run is over: first its processes are killed, and if that did not help, the session.
pub fn out_of_grace(node: &Rc<Node>, exec_id: &str) {
    let Some((exec, session)) = known(node, exec_id) else {
        return;
    };
    let Some(run) = session.state.borrow().current.clone() else {
        return;
    };
    let Some((cause, _)) = run.stopping.clone() else {
        return;
    };
    if session.killed.replace(true) {
        let node = Rc::clone(node);
        tokio::task::spawn_local(async move { exec::terminate(&node, &exec, &cause, 0).await });
    } else {
        node.set_timer(
            Timer::RunGrace(exec.id.clone()),
            sys::boottime() + TO_RETURN,
        );
        signal(&exec, &session, &run, libc::SIGKILL);
    }
}

fn known(node: &Node, exec_id: &str) -> Option<(Rc<Exec>, Rc<Session>)> {
    let exec = node.execs.borrow().get(exec_id).cloned()?;
    let session = exec.session.borrow().clone()?;
    Some((exec, session))
}

/// What a run has started and is still there.
pub fn left(exec: &Exec, session: &Session, run: &Run) -> Vec<Process> {
    let older: HashSet<(i32, u64)> = run.older.iter().copied().collect();
    let leaf = exec.sandbox.groups.leaf(exec.tag.borrow().leaf);
    let pids = processes::pids(&leaf.v2).unwrap_or_default();
    let all: Vec<Process> = pids.into_iter().filter_map(processes::look).collect();
    processes::of_run(session.shell.get(), &older, &all)
}

/// Signals what a run has started; with SIGKILL until nothing of it is left.
fn signal(exec: &Exec, session: &Session, run: &Run, number: i32) {
    let passes = if number == libc::SIGKILL { PASSES } else { 1 };
    for _ in 0..passes {
        let found = left(exec, session, run);
        if found.is_empty() {
            return;
        }
        for process in &found {
            processes::signal(process, number);
        }
    }
}
