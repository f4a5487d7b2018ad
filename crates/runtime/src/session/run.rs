//! `session.run`: one script, once, however often it is asked for; then its output and its end.

use std::os::unix::fs::FileExt;
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame;
use dsec_proto::session::{RunEnd, SessionRun};

use super::book::{Entry, Run};
use super::{broken, finish, is_closed, processes, shell, Session};
use crate::check;
use crate::connection::{Input, Stream};
use crate::exec::{send_range, Exec};
use crate::kernel::sys;
use crate::node::Node;
use crate::output::Log;
use crate::pause;
use crate::timers::Timer;

/// Longest script.
const MAX_SCRIPT: u64 = 16 << 20;
/// How far beyond what has come a client may send.
const CREDIT: u64 = 256 << 10;

/// Serves one reader of a run.
pub async fn run(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let found = async {
        let asked: SessionRun = frame::params(params)?;
        check::exec_id(&asked.run_id)?;
        check::limits(asked.timeout_ms, asked.grace_ms, asked.max_output_bytes)?;
        let found = super::find(node, &asked.sandbox_id, &asked.session_id);
        Ok((asked, found))
    };
    let outcome = match found.await {
        Ok((asked, Ok((exec, session)))) => {
            let _open = exec.sandbox.stream();
            match ended(node, &asked, &exec, &session, stream).await {
                Some(Ok(end)) => {
                    let logs = [&exec.streams[0].log, &exec.streams[1].log];
                    send(logs, &end, asked.max_output_bytes, stream)
                        .await
                        .map(|()| end)
                }
                Some(Err(error)) => Err(error),
                None => return, // the reader has left; what has begun goes on
            }
        }
        Ok((asked, Err(error))) => past(node, &asked, error, stream).await,
        Err(error) => Err(error),
    };
    stream.out.finish(outcome).await;
}

/// A run of a session that is only known by its files. `unknown`: what is said where there are none.
async fn past(
    node: &Node,
    asked: &SessionRun,
    unknown: WireError,
    stream: &Stream,
) -> WireResult<RunEnd> {
    let state = super::past(node, &asked.sandbox_id, &asked.session_id).ok_or(unknown)?;
    let end = state.ended.get(&asked.run_id).cloned();
    let end = end.ok_or_else(|| is_closed(&asked.sandbox_id))?;
    let directory = super::directory(node, &asked.sandbox_id, &asked.session_id);
    let logs = [1, 2].map(|channel| Log::find(&directory, channel));
    send([&logs[0], &logs[1]], &end, asked.max_output_bytes, stream).await?;
    Ok(end)
}

/// Begins the run unless it is known, and waits for its end. `None`: the reader has left.
async fn ended(
    node: &Rc<Node>,
    asked: &SessionRun,
    exec: &Rc<Exec>,
    session: &Rc<Session>,
    stream: &mut Stream,
) -> Option<WireResult<RunEnd>> {
    let run_id = &asked.run_id;
    if finish::outcome(exec, session, run_id).is_none() && !session.runs(run_id) {
        let script = match script(asked, stream).await? {
            Ok(script) => script,
            Err(error) => return Some(Err(error)),
        };
        let begun = tokio::select! {
            begun = begin(node, asked, exec, session, &script) => begun,
            () = left(stream) => return None,
        };
        if let Err(error) = begun {
            return Some(Err(error));
        }
    }
    tokio::select! {
        outcome = exec.until(|exec| finish::outcome(exec, session, run_id)) => Some(outcome),
        () = left(stream) => None,
    }
}

/// Returns when the reader has left; whatever else it says means nothing by now.
async fn left(stream: &mut Stream) {
    while stream.input.recv().await.is_some() {}
}

/// The script, from the request or from channel 0. `None`: the reader has left.
async fn script(asked: &SessionRun, stream: &mut Stream) -> Option<WireResult<Vec<u8>>> {
    let length = match (&asked.script, asked.length) {
        (Some(script), None) => return Some(checked(script.to_vec())),
        (None, Some(length)) if length <= MAX_SCRIPT => length,
        (None, Some(_)) => return Some(checked(vec![b'#'; MAX_SCRIPT as usize + 1])),
        _ => {
            return Some(Err(
                WireError::invalid("a run has one script").with("field", "script")
            ))
        }
    };
    let mut script = Vec::new();
    stream.out.until(0, CREDIT).await;
    while (script.len() as u64) < length {
        match stream.input.recv().await? {
            Input::Data {
                channel: 0,
                offset,
                bytes,
            } if offset == script.len() as u64 && !bytes.is_empty() => {
                script.extend(bytes);
                stream.out.until(0, script.len() as u64 + CREDIT).await;
            }
            Input::Close => return None,
            Input::Until { .. } => {}
            Input::Data { .. } => {
                let text = format!("the script continues at {}", script.len());
                return Some(Err(WireError::new("protocol_error", text)));
            }
        }
    }
    Some(checked(script))
}

fn checked(script: Vec<u8>) -> WireResult<Vec<u8>> {
    if script.len() as u64 > MAX_SCRIPT {
        return Err(WireError::invalid("a script has at most 16 MiB")
            .with("field", "script")
            .remedy("Write it to a file, and let the script source that"));
    }
    if script.contains(&0) {
        return Err(WireError::invalid("the script contains a NUL byte").with("field", "script"));
    }
    Ok(script)
}

/// Waits for its turn, and gives the script to the shell, unless somebody else has meanwhile.
async fn begin(
    node: &Rc<Node>,
    asked: &SessionRun,
    exec: &Rc<Exec>,
    session: &Rc<Session>,
    script: &[u8],
) -> WireResult<()> {
    let _turn = session.turn.lock().await;
    let free = |exec: &Exec| {
        let busy = session.state.borrow().current.is_some()
            && !session.runs(&asked.run_id)
            && exec.is_running();
        (!busy).then_some(())
    };
    exec.until(free).await;
    let known = session.runs(&asked.run_id);
    if known || finish::outcome(exec, session, &asked.run_id).is_some() {
        return Ok(());
    }
    if session.state.borrow().cancelled.contains(&asked.run_id) {
        let entry = Entry::Ended {
            end: finish::unrun(session, &asked.run_id),
            counters: Default::default(),
        };
        return session.note(entry).map_err(broken);
    }
    if session.closing.get() {
        return Err(is_closed(&exec.sandbox.id));
    }
    pause::go_on(node, &exec.sandbox, "exec")?;
    give(node, asked, exec, session, script).map_err(broken)
}

/// Script first, then the intent, then the word to the shell, which takes a number only once.
fn give(
    node: &Node,
    asked: &SessionRun,
    exec: &Exec,
    session: &Session,
    script: &[u8],
) -> std::io::Result<()> {
    session.script.set_len(0)?;
    session.script.write_all_at(script, 0)?;
    fault!("runtime.run.placed");
    let (number, last) = {
        let state = session.state.borrow();
        (state.number + 1, state.last)
    };
    let now = sys::boottime();
    let run = Run {
        number,
        run_id: asked.run_id.clone(),
        started_ns: now,
        timeout_at: asked.timeout_ms.map(|ms| now + ms * 1_000_000),
        grace_ns: asked.grace_ms * 1_000_000,
        older: older(exec, session),
        stopping: None,
        merged: asked.merge_stderr,
    };
    let timeout_at = run.timeout_at;
    session.killed.set(false);
    session.returned.set(false);
    session.note(Entry::Begun(run))?;
    fault!("runtime.run.begun");
    session.say(&shell::lines(number, last, asked.merge_stderr));
    fault!("runtime.run.said");
    if let Some(at) = timeout_at {
        node.set_timer(Timer::RunTimeout(exec.id.clone()), at);
    }
    exec.sandbox.touch();
    Ok(())
}

/// What runs already: background jobs of runs before.
fn older(exec: &Exec, session: &Session) -> Vec<(i32, u64)> {
    let leaf = exec.sandbox.groups.leaf(exec.tag.borrow().leaf);
    processes::pids(&leaf.v2)
        .unwrap_or_default()
        .into_iter()
        .filter(|pid| *pid != session.shell.get())
        .filter_map(processes::look)
        .map(|process| (process.pid, process.started))
        .collect()
}

async fn send(logs: [&Log; 2], end: &RunEnd, most: u64, stream: &Stream) -> WireResult<()> {
    let from = [end.stdout_from, end.stderr_from];
    let total = [end.stdout_total, end.stderr_total];
    send_range(logs, from, total, most, &stream.out).await
}
