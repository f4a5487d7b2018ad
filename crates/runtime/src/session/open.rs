//! `session.open`: an exec with three descriptors more; and taking one up that a former runtime opened.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Object;
use dsec_proto::runtime::{ExecSpec, ExecStart, Mode, Started};
use serde_bytes::ByteBuf;
use tokio::io::Interest;

use super::book::{Book, Counters};
use super::{finish, shell, stop, Session};
use crate::exec::{self, Exec};
use crate::kernel::{poll, sys};
use crate::node::Node;

/// The shell's ends: (descriptor, its number there).
pub type Given = Vec<(OwnedFd, i32)>;

/// `session.open`: answers once the shell runs.
///
/// # Errors
/// As `exec.start`; `invalid_argument` for what a session cannot have.
pub async fn open(node: &Rc<Node>, asked: ExecStart) -> WireResult<Started> {
    let (mut spec, mode, _) = asked.into_spec();
    if mode != Mode::Detach || spec.stdin || spec.backpressure || spec.is_main {
        return Err(WireError::invalid(
            "a session has no reader of its own, no standard input, and is no main process",
        ));
    }
    spec.argv.push(ByteBuf::from(shell::SOURCE));
    let exec = exec::start_session(node, spec).await?;
    fault!("runtime.open.spawned");
    Ok(Started {
        started_at: sys::unix_time(exec.started_ns.get()),
    })
}

/// Makes the descriptors of a session that is about to be spawned.
///
/// # Errors
/// The errno.
pub fn given(node: &Node, exec: &Exec, spec: &ExecSpec) -> io::Result<Given> {
    let start = node.config.range(exec.sandbox.tag.borrow().slot);
    let (uid, gid) = crate::check::known_user(&spec.user).unwrap_or((0, 0));
    let (theirs, commands) = sys::pipe(0)?;
    let (status, told) = sys::pipe(0)?;
    for fd in [&theirs, &told] {
        // The shell opens both again by name.
        sys::chown(fd, start + uid, start + gid)?;
    }
    sys::nonblocking(&commands)?;
    sys::nonblocking(&status)?;
    let script = File::from(sys::memory("script")?);
    script.set_permissions(Permissions::from_mode(0o444))?;
    let read = File::open(format!("/proc/self/fd/{}", script.as_raw_fd()))?;
    let session = session(node, exec, status, commands, script)?;
    session.say(shell::PRELUDE);
    fault!("runtime.open.given");
    exec.session.replace(Some(Rc::new(session)));
    Ok(vec![
        (theirs, shell::COMMANDS),
        (told, shell::STATUS),
        (read.into(), shell::SCRIPT),
    ])
}

fn session(
    node: &Node,
    exec: &Exec,
    status: OwnedFd,
    commands: OwnedFd,
    script: File,
) -> io::Result<Session> {
    let directory = node.config.output().join(&exec.sandbox.id).join(&exec.id);
    let baseline = exec.tag.borrow().baseline;
    let counters = Counters {
        oom_kills: baseline.oom_kills,
        pids_refused: baseline.pids_refused,
        cpu_ns: 0,
    };
    let (book, state) = Book::open(&directory, counters)?;
    Ok(Session {
        commands,
        status: Rc::new(status),
        script,
        book,
        state: state.into(),
        statuses: Default::default(),
        shell: Default::default(),
        closing: Default::default(),
        killed: Default::default(),
        returned: Default::default(),
        turn: Default::default(),
    })
}

/// Takes up a session of a former runtime: `pipes` are what the keeper held for it.
///
/// The shell is told once more what to run: it answers with the status, or it has not been told before.
pub fn take_up(node: &Rc<Node>, exec: &Rc<Exec>, object: &Object, pipes: Vec<OwnedFd>) {
    let Ok([status, commands, script]) = <[OwnedFd; 3]>::try_from(pipes) else {
        return tracing::error!(exec_id = exec.id, "the keeper has lost a session's pipes");
    };
    let session = match session(node, exec, status, commands, File::from(script)) {
        Ok(session) => Rc::new(session),
        Err(error) => return tracing::error!(exec_id = exec.id, "its session: {error}"),
    };
    session.led_by(object.pid);
    exec.session.replace(Some(Rc::clone(&session)));
    if object.ended.is_some() {
        return;
    }
    let state = session.state.borrow();
    if let Some(run) = &state.current {
        session.say(&shell::lines(run.number, state.last, run.merged));
        stop::arm(node, exec, &session, run);
    }
    drop(state);
    listen(node, exec, &session);
}

/// Follows the statuses that the shell tells, for as long as there is somebody who could.
pub fn listen(node: &Rc<Node>, exec: &Rc<Exec>, session: &Rc<Session>) {
    let (node, exec, session) = (Rc::clone(node), Rc::clone(exec), Rc::clone(session));
    tokio::task::spawn_local(async move {
        let followed = async {
            let watched = poll::watch(
                finish::Watched(Rc::clone(&session.status)),
                Interest::READABLE,
            )?;
            loop {
                let mut ready = tokio::select! {
                    ready = watched.ready(Interest::READABLE) => ready?,
                    () = exec.until(|exec| (!exec.is_running()).then_some(())) => return Ok(()),
                };
                match finish::read(&node, &exec, &session)? {
                    finish::Told::Something => {}
                    finish::Told::Nothing => ready.clear_ready(),
                    finish::Told::NoMore => return Ok(()),
                }
            }
        };
        let followed: io::Result<()> = followed.await;
        if let Err(error) = followed {
            tracing::error!(exec_id = exec.id, "statuses can no longer be read: {error}");
        }
    });
}
