//! Sessions: a shell that is one exec, and the runs that it is given one after the other.
//!
//! What a session has beyond an exec are three descriptors (its commands, its statuses, the script of the run), which the
//! keeper holds with the exec's pipes, and a [`book`] of what happened. A successor of the runtime takes both up.

mod book;
mod close;
mod finish;
mod open;
mod processes;
mod run;
mod shell;
mod stop;

pub use close::close;
pub use finish::{over, runs};
pub use open::{given, listen, open, take_up, Given};
pub use run::run;
pub use stop::{cancel, out_of_grace, out_of_time};

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use dsec_proto::error::{WireError, WireResult};

use crate::exec::Exec;
use crate::kernel::sys;
use crate::node::Node;
use book::{Book, Entry, State};
use shell::Statuses;

/// A session. Its exec owns it.
pub struct Session {
    commands: OwnedFd,
    status: Rc<OwnedFd>,
    script: File,
    book: Book,
    state: RefCell<State>,
    statuses: RefCell<Statuses>,
    /// PID of the shell, by the host's numbers.
    shell: Cell<i32>,
    /// No more runs are taken.
    closing: Cell<bool>,
    /// The processes of the run that is interrupted have been killed.
    killed: Cell<bool>,
    /// The shell has given the interrupted script up.
    returned: Cell<bool>,
    /// Held by whoever begins a run: first come, first served.
    turn: tokio::sync::Mutex<()>,
}

impl Session {
    /// The shell's PID, once it is known.
    pub fn led_by(&self, pid: i32) {
        self.shell.set(pid);
    }

    /// What the keeper holds, in the order that [`take_up`] expects.
    #[must_use]
    pub fn held(&self) -> [i32; 3] {
        [
            self.status.as_raw_fd(),
            self.commands.as_raw_fd(),
            self.script.as_raw_fd(),
        ]
    }

    /// Writes an entry down, and then takes it in.
    fn note(&self, entry: Entry) -> io::Result<()> {
        self.book.append(&entry)?;
        self.state.borrow_mut().apply(entry);
        Ok(())
    }

    /// Tells the shell something. One that has ended is not told, which its end will say.
    fn say(&self, text: &str) {
        // SAFETY: a valid buffer and its length.
        let written =
            unsafe { libc::write(self.commands.as_raw_fd(), text.as_ptr().cast(), text.len()) };
        match sys::check(written as libc::c_long) {
            Err(error) if error.raw_os_error() != Some(libc::EPIPE) => {
                tracing::error!("a shell takes no more commands: {error}");
            }
            _ => {}
        }
    }

    fn running(&self) -> Option<u64> {
        self.state.borrow().current.as_ref().map(|run| run.number)
    }

    /// The run that it has.
    #[must_use]
    pub fn run_id(&self) -> Option<String> {
        let state = self.state.borrow();
        state.current.as_ref().map(|run| run.run_id.clone())
    }

    fn runs(&self, run_id: &str) -> bool {
        self.state
            .borrow()
            .current
            .as_ref()
            .is_some_and(|run| run.run_id == run_id)
    }
}

/// A session and its exec.
fn find(node: &Node, sandbox_id: &str, session_id: &str) -> WireResult<(Rc<Exec>, Rc<Session>)> {
    crate::check::sandbox_id(sandbox_id)?;
    crate::check::exec_id(session_id)?;
    let exec = node.exec(sandbox_id, session_id)?;
    let session = exec.session.borrow().clone();
    match session {
        Some(session) => Ok((exec, session)),
        None => Err(WireError::not_found(format!("{session_id} is no session")).about(sandbox_id)),
    }
}

/// What happened in a session whose exec has ended, was acknowledged, and is not known to this runtime any more.
fn past(node: &Node, sandbox_id: &str, session_id: &str) -> Option<State> {
    node.sandbox(sandbox_id).ok()?;
    book::past(&directory(node, sandbox_id, session_id))
}

fn directory(node: &Node, sandbox_id: &str, session_id: &str) -> PathBuf {
    node.config.output().join(sandbox_id).join(session_id)
}

fn broken(error: io::Error) -> WireError {
    WireError::node("session", error.to_string())
}

fn is_closed(sandbox_id: &str) -> WireError {
    WireError::new("conflict", "the session is closed")
        .about(sandbox_id)
        .in_phase("session")
        .remedy("Open another one")
}
