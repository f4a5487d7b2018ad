//! How a run ends: by a status that the shell tells, or with the shell.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::WireResult;
use dsec_proto::runtime::{ExecEnd, ExecUsage};
use dsec_proto::session::{RunEnd, RunList};

use super::book::{Counters, Entry, Run};
use super::{processes, stop, Session};
use crate::audit;
use crate::exec::{self, Exec, Phase};
use crate::kernel::sys;
use crate::node::Node;
use crate::timers::Timer;

/// A descriptor that is watched and that others have as well.
pub struct Watched(pub Rc<OwnedFd>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// What a look at the status pipe came to.
pub enum Told {
    /// Bytes.
    Something,
    /// None now.
    Nothing,
    /// None any more.
    NoMore,
}

/// Takes what the shell has told.
pub fn read(node: &Rc<Node>, exec: &Rc<Exec>, session: &Rc<Session>) -> io::Result<Told> {
    let mut buffer = [0u8; 512];
    // SAFETY: a buffer and its length.
    let count = unsafe {
        libc::read(
            session.status.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    };
    let count = match sys::check(count as libc::c_long) {
        Ok(0) => return Ok(Told::NoMore),
        Ok(count) => count as usize,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Told::Nothing),
        Err(error) => return Err(error),
    };
    let told = session.statuses.borrow_mut().take(&buffer[..count]);
    for (number, status) in told {
        let current = session.state.borrow().current.clone();
        // A status may be told twice, and anything in the sandbox may write there.
        if let Some(run) = current.filter(|run| run.number == number) {
            let how = How {
                ended: "exited".into(),
                exit_code: Some(status),
                signal: None,
                at: sys::boottime(),
                closed: false,
            };
            if run.stopping.is_none() {
                note(node, exec, session, &run, how);
            } else if !session.returned.replace(true) {
                let (node, exec, session) = (Rc::clone(node), Rc::clone(exec), Rc::clone(session));
                tokio::task::spawn_local(async move {
                    empty(&exec, &session, &run).await;
                    if session.running() == Some(run.number) {
                        note(&node, &exec, &session, &run, how);
                    }
                });
            }
        }
    }
    Ok(Told::Something)
}

/// Returns when nothing is left of what an interrupted run had started: it is being ended.
async fn empty(exec: &Exec, session: &Session, run: &Run) {
    while let Some(process) = stop::left(exec, session, run).first() {
        if let Err(error) = processes::ended(process).await {
            return tracing::error!(pid = process.pid, "cannot be waited for: {error}");
        }
    }
}

/// The shell has ended, and its facts are known: so has the run that it had.
pub fn over(node: &Rc<Node>, exec: &Rc<Exec>, end: &ExecEnd) {
    let Some(session) = exec.session.borrow().clone() else {
        return;
    };
    // It may have told a status first.
    while matches!(read(node, exec, &session), Ok(Told::Something)) {}
    let current = session.state.borrow().current.clone();
    if let Some(run) = current {
        let how = How {
            ended: end.ended.clone(),
            exit_code: end.exit_code,
            signal: end.signal,
            at: exec.started_ns.get() + end.duration_ns,
            closed: true,
        };
        note(node, exec, &session, &run, how);
    }
}

struct How {
    ended: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    at: u64,
    closed: bool,
}

/// Writes the end of the current run down: what the pipes hold now is its output, what the counters say are its facts.
fn note(node: &Node, exec: &Exec, session: &Session, run: &Run, how: How) {
    node.cancel_timer(&Timer::RunTimeout(exec.id.clone()));
    node.cancel_timer(&Timer::RunGrace(exec.id.clone()));
    exec.drain();
    let (marks, before) = {
        let state = session.state.borrow();
        (state.marks, state.counters)
    };
    let leaf = exec.leaf(node);
    let (cpu_ns, memory_peak_bytes) = leaf.used();
    let counters = Counters {
        oom_kills: leaf.oom_kills(),
        pids_refused: exec.sandbox.groups.pids_refused(),
        cpu_ns,
    };
    let totals = [0, 1].map(|index| exec.streams[index].log.total() - marks[index]);
    let cause = run.stopping.as_ref().map(|(cause, _)| cause.clone());
    let end = RunEnd {
        run_id: run.run_id.clone(),
        // The status of what was interrupted says nothing about it.
        exit_code: if cause.is_some() { None } else { how.exit_code },
        ended: cause.unwrap_or(how.ended),
        signal: how.signal,
        oom_kills: counters.oom_kills.saturating_sub(before.oom_kills),
        quota_hits: exec::quota_hits(node, exec, before.pids_refused),
        stdout_from: marks[0],
        stdout_total: totals[0],
        stderr_from: marks[1],
        stderr_total: totals[1],
        started_at: sys::unix_time(run.started_ns),
        duration_ns: how.at.saturating_sub(run.started_ns),
        usage: ExecUsage {
            cpu_ns: counters.cpu_ns.saturating_sub(before.cpu_ns),
            memory_peak_bytes,
        },
        closed: how.closed,
        merged: run.merged,
    };
    audit::limits::ended(node, exec, &run.run_id, counters.oom_kills, &end.quota_hits);
    let entry = Entry::Ended { end, counters };
    fault!("runtime.run.told");
    if let Err(error) = session.note(entry.clone()) {
        // Known for as long as this runtime lives; its successor would be told the status once more.
        tracing::error!(
            exec_id = exec.id,
            "the end of a run is not written down: {error}"
        );
        session.state.borrow_mut().apply(entry);
    }
    fault!("runtime.run.ended");
    // Nobody reads it any more; a long one would stay in memory for as long as the session is idle.
    let _ = session.script.set_len(0);
    exec.sandbox.touch();
    exec.changed.notify_waiters();
}

/// The end of a run that was not to begin.
pub fn unrun(session: &Session, run_id: &str) -> RunEnd {
    let state = session.state.borrow();
    RunEnd {
        run_id: run_id.into(),
        ended: "cancelled".into(),
        exit_code: None,
        signal: None,
        oom_kills: 0,
        quota_hits: Vec::new(),
        stdout_from: state.marks[0],
        stdout_total: 0,
        stderr_from: state.marks[1],
        stderr_total: 0,
        started_at: sys::unix_time(sys::boottime()),
        duration_ns: 0,
        usage: ExecUsage::default(),
        closed: false,
        merged: false,
    }
}

/// How a run ended, or why it cannot any more; `None` while it may.
pub fn outcome(exec: &Exec, session: &Session, run_id: &str) -> Option<WireResult<RunEnd>> {
    if let Some(end) = session.state.borrow().ended.get(run_id) {
        return Some(Ok(end.clone()));
    }
    match &*exec.phase.borrow() {
        Phase::Failed(error) => Some(Err(error.clone())),
        Phase::Ended(_) => Some(Err(super::is_closed(&exec.sandbox.id))),
        Phase::Starting | Phase::Running | Phase::Ending => None,
    }
}

/// `session.runs`.
///
/// # Errors
/// `not_found`.
pub fn runs(node: &Node, sandbox_id: &str) -> WireResult<RunList> {
    node.sandbox(sandbox_id)?;
    // From the files: an exec that was acknowledged is not known to a later runtime.
    let execs = std::fs::read_dir(node.config.output().join(sandbox_id));
    let found = execs
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| super::book::past(&entry.path()));
    let runs = found.flat_map(|state| state.ended.into_values()).collect();
    Ok(RunList { runs })
}
