//! `exec.start`: one spawn, however often it is asked for.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Answer, Call, Refusal};
use dsec_proto::runtime::{ExecEnd, ExecSpec, ExecUsage, RuntimeEvent};
use tokio::sync::SemaphorePermit as Permit;

use super::{ends, Exec, Phase};
use crate::groups::{Baseline, WarmLeaf};
use crate::keeper::Parcel;
use crate::kernel::sys;
use crate::node::Node;
use crate::plans::{self, Entrant};
use crate::sandbox::{create::entry, Sandbox};
use crate::tag::{self, exec_object, sandbox_object, ExecTag, Tag};
use crate::timers::Timer;
use crate::{check, pause, sandbox, session};

/// How long it may take from the clone to the program: the look-up of a user reads files of the sandbox, which may be FIFOs.
const TO_BEGIN: Duration = Duration::from_secs(30);

/// Starts an exec, or joins the one that has its ID. Returns when the program runs.
///
/// # Errors
/// What is wrong with the request, why the program cannot be executed, or `sandbox_gone`.
pub async fn start(node: &Rc<Node>, spec: ExecSpec) -> WireResult<Rc<Exec>> {
    begin(node, spec, false).await
}

/// The same for the shell of a session.
///
/// # Errors
/// As [`start`].
pub async fn start_session(node: &Rc<Node>, spec: ExecSpec) -> WireResult<Rc<Exec>> {
    begin(node, spec, true).await
}

async fn begin(node: &Rc<Node>, spec: ExecSpec, session: bool) -> WireResult<Rc<Exec>> {
    check::exec(&spec)?;
    let known = node.execs.borrow().get(&spec.exec_id).cloned();
    if let Some(exec) = known {
        return begun(&exec).await;
    }
    let sandbox = node.live(&spec.sandbox_id)?;
    sandbox
        .until(|sandbox| {
            (!matches!(&*sandbox.phase.borrow(), sandbox::Phase::Creating) || spec.is_main)
                .then_some(())
        })
        .await;
    let sandbox = node.live(&sandbox.id)?;
    node.has_descriptors(if session { 14 } else { 8 })?;
    pause::go_on(node, &sandbox, "exec")?;
    if node
        .cancelled
        .borrow()
        .contains(&(spec.sandbox_id.clone(), spec.exec_id.clone()))
    {
        return Ok(unrun(node, &sandbox, &spec));
    }
    let tag = ExecTag {
        session,
        listens: node.records_calls(),
        ..tag_of(&spec)
    };
    let exec = Exec::new(node, &sandbox, tag, Phase::Starting, true);
    node.execs
        .borrow_mut()
        .insert(spec.exec_id.clone(), Rc::clone(&exec));
    exec.hold(node);
    let Some(turn) = turn(node, &exec).await else {
        exec.release(node);
        never_ran(node, &exec);
        return Ok(exec);
    };
    match enter(node, &exec, &spec).await {
        Ok(()) => {
            drop(turn);
            fault!("runtime.exec.spawned");
            running(node, &exec);
            Ok(exec)
        }
        Err(error) => {
            node.execs.borrow_mut().remove(&spec.exec_id);
            super::stdin::close(node, &exec).await;
            exec.let_go(node);
            exec.release(node);
            let error = error.about(&spec.sandbox_id);
            exec.enter(Phase::Failed(error.clone()));
            Err(error)
        }
    }
}

/// Waits until the exec may enter its sandbox; `None` when it was killed before.
async fn turn<'a>(node: &'a Node, exec: &'a Exec) -> Option<[Permit<'a>; 2]> {
    exec.waiting.set(!exec.tag.borrow().is_main);
    let both = async {
        let own = exec.sandbox.launches.acquire().await;
        Some([own.ok()?, node.launches.acquire().await.ok()?])
    };
    let given_up = exec.until(|exec| exec.tag.borrow().cause.is_some().then_some(()));
    let turn = tokio::select! {
        biased;
        () = given_up => None,
        both = both => both,
    };
    exec.waiting.set(false);
    turn
}

/// Takes a group and launches the program into it.
async fn enter(node: &Rc<Node>, exec: &Rc<Exec>, spec: &ExecSpec) -> WireResult<()> {
    let sandbox = node.live(&spec.sandbox_id)?;
    let (index, leaf) = sandbox
        .take_leaf(&node.pool)
        .map_err(|error| WireError::node("groups", error.to_string()))?;
    {
        let mut tag = exec.tag.borrow_mut();
        tag.leaf = index;
        tag.baseline = Baseline {
            oom_kills: leaf.oom_kills(),
            pids_refused: leaf.pids_refused(),
        };
    }
    exec.oom_noted.set(exec.tag.borrow().baseline.oom_kills);
    fault!("runtime.exec.leaf");
    let launched = launch(node, exec, spec, &leaf).await;
    node.warm.used(&leaf, node.descriptor_limit);
    if launched.is_err() {
        sandbox.give_leaf(&node.pool, index);
    }
    launched
}

async fn begun(exec: &Rc<Exec>) -> WireResult<Rc<Exec>> {
    exec.until(|exec| match &*exec.phase.borrow() {
        Phase::Starting => None,
        Phase::Failed(error) if error.code != "sandbox_gone" => Some(Err(error.clone())),
        _ => Some(Ok(())),
    })
    .await?;
    Ok(Rc::clone(exec))
}

/// An exec that was killed before it was started.
fn unrun(node: &Node, sandbox: &Rc<Sandbox>, spec: &ExecSpec) -> Rc<Exec> {
    let exec = Exec::new(node, sandbox, tag_of(spec), Phase::Starting, true);
    node.execs
        .borrow_mut()
        .insert(spec.exec_id.clone(), Rc::clone(&exec));
    never_ran(node, &exec);
    exec
}

fn never_ran(node: &Node, exec: &Exec) {
    let end = ExecEnd {
        exec_id: exec.id.clone(),
        ended: "cancelled".into(),
        exit_code: None,
        signal: None,
        oom_kills: 0,
        quota_hits: Vec::new(),
        stdout_total: 0,
        stderr_total: 0,
        started_at: sys::unix_time(sys::boottime()),
        duration_ns: 0,
        usage: ExecUsage::default(),
        merged: exec.tag.borrow().merged,
    };
    exec.released.set(true);
    exec.enter(Phase::Ended(end.clone()));
    node.tell(RuntimeEvent::ExecEnded {
        sandbox_id: exec.sandbox.id.clone(),
        end,
    });
}

fn tag_of(spec: &ExecSpec) -> ExecTag {
    ExecTag {
        exec_id: spec.exec_id.clone(),
        sandbox_id: spec.sandbox_id.clone(),
        leaf: 0,
        argv: tag::shortened(&spec.argv),
        timeout_at: timeout_at(spec),
        grace_ns: spec.grace_ms * 1_000_000,
        kill_at: None,
        cause: None,
        stdin: spec.stdin || spec.pty.is_some(),
        backpressure: spec.backpressure,
        max_output_bytes: spec.max_output_bytes,
        is_main: spec.is_main,
        end: None,
        session: false,
        merged: spec.merge_stderr || spec.pty.is_some(),
        terminal: spec.pty.is_some(),
        listens: false,
        baseline: Baseline::default(),
    }
}

fn timeout_at(spec: &ExecSpec) -> Option<u64> {
    spec.timeout_ms.map(|ms| sys::boottime() + ms * 1_000_000)
}

async fn launch(
    node: &Rc<Node>,
    exec: &Rc<Exec>,
    spec: &ExecSpec,
    leaf: &WarmLeaf,
) -> WireResult<()> {
    let broken = |error: std::io::Error| WireError::node("exec", error.to_string());
    exec.tag.borrow_mut().timeout_at = timeout_at(spec);
    let mut parcel = Parcel::default();
    let files = leaf.entry().map_err(broken)?;
    let entry = entry(&files, &mut parcel);
    let ends = ends::pack(node, exec, spec, &mut parcel).map_err(broken)?;
    let entrant = Entrant {
        object_id: sandbox_object(&exec.sandbox.id),
        entry,
        start: node.config.range(exec.sandbox.tag.borrow().slot),
        user: &spec.user,
        cwd: spec.cwd.as_ref().map(|path| path.as_slice()),
        create_cwd: spec.create_cwd,
        processors: exec.sandbox.tag.borrow().processors,
        owned: ends.owned,
    };
    let profile = node.profiles.get(exec.sandbox.tag.borrow().profile);
    let listens = exec.tag.borrow().listens;
    let plan = plans::exec(profile, spec, &entrant, ends.given, listens);
    let session = exec.session.borrow().clone();
    let stdin = exec.stdin.borrow().clone();
    if let Some(stdin) = stdin {
        stdin
            .hold(node, exec)
            .await
            .map_err(|refusal| WireError::node("stdin", refusal.message))?;
        fault!("runtime.stdin.held");
    }
    let tag = Tag::Exec(exec.tag.borrow().clone())
        .encode()
        .map_err(|error| WireError::node("tag", error))?;
    let object_id = exec_object(&exec.sandbox.id, &exec.id);
    let call = Call::Spawn {
        object_id,
        tag,
        plan: Some(Box::new(plan)),
        plan_fd: None,
        held: ends.held,
    };
    let (pid, started, opened) = spawn_in_time(node, call, &parcel, leaf).await?;
    exec.started_ns.set(started);
    listen(node, exec, opened).await;
    if let Some(session) = &session {
        session.led_by(pid);
    }
    if spec.pty.is_some() {
        fault!("runtime.pty.spawned");
        let adopted = take_terminal(node, exec).await;
        fault!("runtime.pty.adopted");
        if adopted.is_err() {
            let _ = leaf.kill();
        }
        return adopted;
    }
    Ok(())
}

/// What the child has opened came with the answer; not so if that is a second one.
async fn listen(node: &Node, exec: &Rc<Exec>, mut opened: Vec<OwnedFd>) {
    if node.calls.is_none() || !exec.tag.borrow().listens {
        return;
    }
    if opened.is_empty() {
        let object_id = exec_object(&exec.sandbox.id, &exec.id);
        let fetched = node.keeper.call(Call::Fetch { object_id }, &[]).await;
        let held = fetched.map(|(_, held)| held).unwrap_or_default();
        opened = held.into_iter().skip(exec.given()).collect();
    }
    super::listen(node, exec, &mut opened);
}

/// The child has opened the terminal and the keeper holds its master, after what it was given.
async fn take_terminal(node: &Node, exec: &Exec) -> WireResult<()> {
    let object_id = exec_object(&exec.sandbox.id, &exec.id);
    let fetched = node.keeper.call(Call::Fetch { object_id }, &[]).await;
    let (_, mut fds) = fetched.map_err(|refusal| WireError::node("pty", refusal.message))?;
    let master = fds
        .pop()
        .ok_or_else(|| WireError::node("pty", "the keeper has no terminal of it"))?;
    let adopted = super::adopt(node, exec, master, None).await;
    adopted.map_err(|error| WireError::node("pty", error.to_string()))
}

async fn spawn_in_time(
    node: &Node,
    call: Call,
    parcel: &Parcel,
    leaf: &WarmLeaf,
) -> WireResult<(i32, u64, Vec<OwnedFd>)> {
    let mut spawned = std::pin::pin!(node.keeper.call(call, parcel.numbers()));
    let answer = match tokio::time::timeout(TO_BEGIN, spawned.as_mut()).await {
        Ok(answer) => answer,
        Err(_) => {
            // The child dies of this and the keeper answers with the step in which it was.
            let _ = leaf.kill();
            spawned.await
        }
    };
    match answer {
        Ok((
            Answer::Spawned {
                pid, started_ns, ..
            },
            opened,
        )) => Ok((pid, started_ns, opened)),
        Ok((other, _)) => Err(WireError::node(
            "exec",
            format!("unexpected answer {other:?}"),
        )),
        Err(refusal) => Err(errors_of(&refusal)),
    }
}

/// What a refused spawn means to the caller.
#[must_use]
pub fn errors_of(refusal: &Refusal) -> WireError {
    let Some(failure) = &refusal.failure else {
        return match refusal.code.as_str() {
            "gone" | "unknown_object" => {
                WireError::new("sandbox_gone", "the sandbox has ended").with("cause", "lost")
            }
            _ => WireError::node("exec", format!("{}: {}", refusal.code, refusal.message)),
        };
    };
    let said = failure.message.clone();
    let error = match (failure.step.as_str(), failure.errno) {
        ("exec", libc::ENOENT | libc::ENOTDIR) => WireError::new("executable_not_found", said)
            .remedy(
                "Give its whole path, or a PATH that leads to it; a script needs its interpreter",
            ),
        ("exec", libc::E2BIG) => WireError::invalid(said)
            .with("field", "argv")
            .remedy("Write a file and run it, or send it on standard input"),
        (
            "exec",
            libc::EACCES
            | libc::EPERM
            | libc::ENOEXEC
            | libc::ELOOP
            | libc::ELIBBAD
            | libc::ETXTBSY
            | libc::EISDIR,
        ) => WireError::new("not_executable", cannot(&said, failure.errno))
            .remedy("chmod +x it, or run it by its interpreter; it must be made for this machine"),
        ("resolve_user", _) => WireError::invalid(said)
            .in_phase("user")
            .remedy("Make the user in the image or with useradd, or give a number: UID or UID:GID"),
        (
            "chdir",
            libc::ENOENT
            | libc::ENOTDIR
            | libc::EACCES
            | libc::ELOOP
            | libc::ENAMETOOLONG
            | libc::EROFS,
        ) => WireError::invalid(cannot(&said, failure.errno))
            .in_phase("cwd")
            .remedy("Make the directory first; the user must be allowed to enter it"),
        ("open_pty", libc::ENOSPC) => WireError::new("capacity", said)
            .remedy("The sandbox, or the machine (sysctl kernel.pty.max), has no terminal left"),
        _ if refusal.code == "gone" => {
            WireError::new("sandbox_gone", "the sandbox has ended").with("cause", "lost")
        }
        (step, _) => WireError::node(step, said),
    };
    error.with("errno", failure.errno)
}

/// "cannot execute /x: Permission denied" of the step "execute /x".
fn cannot(step: &str, errno: i32) -> String {
    let why = std::io::Error::from_raw_os_error(errno).to_string();
    let why = why.split(" (os error").next().unwrap_or_default();
    format!("cannot {step}: {why}")
}

/// The program runs: follow its output, set its timer.
fn running(node: &Rc<Node>, exec: &Rc<Exec>) {
    exec.enter(Phase::Running);
    exec.sandbox.touch();
    super::follow(node, exec);
    if let Some(session) = exec.session.borrow().as_ref() {
        session::listen(node, exec, session);
    }
    if let Some(at) = exec.tag.borrow().timeout_at {
        node.set_timer(Timer::Timeout(exec.id.clone()), at);
    }
    if let Some(end) = exec.early.borrow_mut().take() {
        super::ended(node, exec, end);
    }
}
