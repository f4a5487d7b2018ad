//! Execs: started once, followed by any number of readers, ended, acknowledged.

mod ends;
mod finish;
pub mod kept;
mod kill;
mod pump;
mod start;
mod stdin;
mod stream;
mod terminal;
mod writers;

pub use finish::{ack, ended, quota_hits, settle};
pub use kill::{kill, out_of_grace, out_of_time, signal_group, terminate};
pub use pump::follow;
pub use start::{errors_of, start, start_session};
pub use stdin::Stdin;
pub use stream::{collect_or_stream, output_only, send_range, Wanted};
pub use terminal::{adopt, resize, Terminal};

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Ended;
use dsec_proto::runtime::{ExecEnd, ExecState};
use tokio::sync::Notify;

use crate::audit;
use crate::check;
use crate::groups::{Baseline, Leaf, WarmLeaf};
use crate::kernel::sys;
use crate::node::Node;
use crate::output::Log;
use crate::sandbox::{write_tag, Sandbox};
use crate::session::Session;
use crate::tag::{exec_object, ExecTag, Tag};

/// An exec that is known, or one whose end the caller has recorded: of that the files are left.
///
/// # Errors
/// `not_found`; `invalid_argument` when the recorded end is another exec's.
pub fn find(
    node: &Node,
    sandbox_id: &str,
    exec_id: &str,
    recorded: Option<ExecEnd>,
) -> WireResult<Rc<Exec>> {
    match (node.exec(sandbox_id, exec_id), recorded) {
        (Ok(exec), _) => Ok(exec),
        (Err(unknown), None) => Err(unknown),
        (Err(_), Some(end)) => {
            check::exec_id(exec_id)?;
            if end.exec_id != exec_id {
                return Err(WireError::invalid("the end of another exec").with("field", "end"));
            }
            let sandbox = node.live(sandbox_id)?;
            let exec = Exec::new(
                node,
                &sandbox,
                ended_tag(sandbox_id, end.clone()),
                Phase::Ended(end),
                false,
            );
            exec.released.set(true);
            node.execs
                .borrow_mut()
                .insert(exec_id.to_owned(), Rc::clone(&exec));
            Ok(exec)
        }
    }
}

/// What it is known by to whoever has asked for what it does: a session by its present run.
#[must_use]
pub fn id_of_run(exec: &Exec) -> String {
    let session = exec.session.borrow();
    let run = session.as_ref().and_then(|session| session.run_id());
    run.unwrap_or_else(|| exec.id.clone())
}

/// Has the calls of an exec answered, those too that wait already. `opened`: what its child has handed to the keeper: the
/// listener of its filter if it has one, which is taken, and a terminal's master, which stays.
pub fn listen(node: &Node, exec: &Rc<Exec>, opened: &mut Vec<OwnedFd>) {
    let terminals = usize::from(exec.tag.borrow().terminal);
    if let Some(calls) = node.calls.as_ref().filter(|_| opened.len() > terminals) {
        calls.add(exec, opened.swap_remove(0));
    }
}

fn ended_tag(sandbox_id: &str, end: ExecEnd) -> ExecTag {
    ExecTag {
        exec_id: end.exec_id.clone(),
        sandbox_id: sandbox_id.to_owned(),
        leaf: 0,
        argv: Vec::new(),
        timeout_at: None,
        grace_ns: 0,
        kill_at: None,
        cause: None,
        stdin: false,
        backpressure: false,
        max_output_bytes: check::MAX_OUTPUT,
        is_main: false,
        session: false,
        merged: end.merged,
        terminal: false,
        listens: false,
        baseline: Baseline::default(),
        end: Some(end),
    }
}

/// Where an exec is in its life.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Asked for.
    Starting,
    /// The program runs.
    Running,
    /// The leader has ended; its end is being put together.
    Ending,
    /// It has ended.
    Ended(ExecEnd),
    /// It could not begin, or went with its sandbox.
    Failed(WireError),
}

impl Phase {
    fn is_running(&self) -> bool {
        matches!(self, Phase::Starting | Phase::Running | Phase::Ending)
    }
}

/// One stream of its output.
pub struct Stream {
    /// The bytes.
    pub log: Log,
    /// Read end of the pipe, until all writers are gone.
    pub pipe: RefCell<Option<Rc<OwnedFd>>>,
    /// The furthest that a reader has come, for backpressure.
    pub taken: Cell<u64>,
}

/// One exec.
pub struct Exec {
    /// Its ID.
    pub id: String,
    /// Where it runs.
    pub sandbox: Rc<Sandbox>,
    /// What the keeper holds of it.
    pub tag: RefCell<ExecTag>,
    /// Where it is.
    pub phase: RefCell<Phase>,
    /// Told at every change: phase, output, readers.
    pub changed: Notify,
    /// CLOCK_BOOTTIME.
    pub started_ns: Cell<u64>,
    /// Channels 1 and 2.
    pub streams: [Stream; 2],
    /// Channel 0.
    pub stdin: RefCell<Option<Rc<Stdin>>>,
    /// Of a session's shell.
    pub session: RefCell<Option<Rc<Session>>>,
    /// Write end of the pipe that a terminal's output will go through.
    pub relay: RefCell<Option<Rc<OwnedFd>>>,
    /// The terminal, once the program has it.
    pub terminal: RefCell<Option<Rc<Terminal>>>,
    /// It waits for its turn to enter the sandbox: a kill ends it before there is anything to kill.
    waiting: Cell<bool>,
    /// The edge has committed its end.
    acked: Cell<bool>,
    /// Its output counts as that of a finished one.
    counted: Cell<bool>,
    /// Its group was killed.
    killed: Cell<bool>,
    /// The keeper has been told to forget it.
    released: Cell<bool>,
    /// Descriptors that are counted for it.
    holds: Cell<u64>,
    /// Of its filter, by the number that it is listened to with.
    pub listener: Cell<Option<u64>>,
    /// Its OOM kills that are noted, by the counter of its group.
    pub oom_noted: Cell<u64>,
    /// Whether it is noted that a stream had too much.
    pub output_noted: [Cell<bool>; 2],
    /// The end, when it came before the answer to the spawn.
    early: RefCell<Option<Ended>>,
}

impl Exec {
    /// An exec with the streams that its files say, or new ones.
    pub fn new(
        node: &Node,
        sandbox: &Rc<Sandbox>,
        tag: ExecTag,
        phase: Phase,
        new: bool,
    ) -> Rc<Self> {
        let directory = node.config.output().join(&sandbox.id).join(&tag.exec_id);
        let stream = |channel| Stream {
            log: if new {
                Log::new(&directory, channel)
            } else {
                Log::find(&directory, channel)
            },
            pipe: RefCell::default(),
            taken: Cell::new(0),
        };
        let acked = tag.end.is_some();
        if phase.is_running() {
            sandbox.running.set(sandbox.running.get() + 1);
        }
        Rc::new(Self {
            id: tag.exec_id.clone(),
            sandbox: Rc::clone(sandbox),
            tag: RefCell::new(tag),
            phase: RefCell::new(phase),
            changed: Notify::new(),
            started_ns: Cell::new(sys::boottime()),
            streams: [stream(1), stream(2)],
            stdin: RefCell::default(),
            session: RefCell::default(),
            relay: RefCell::default(),
            terminal: RefCell::default(),
            waiting: Cell::new(false),
            acked: Cell::new(acked),
            counted: Cell::new(false),
            killed: Cell::new(!new),
            released: Cell::new(false),
            holds: Cell::new(0),
            listener: Cell::default(),
            oom_noted: Cell::new(0),
            output_noted: Default::default(),
            early: RefCell::default(),
        })
    }

    /// Whether the program has not yet begun.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Starting)
    }

    /// Whether the program runs.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Running)
    }

    /// Whether it may still run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase.borrow().is_running()
    }

    /// Exit code, once it has exited.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match &*self.phase.borrow() {
            Phase::Ended(end) => end.exit_code,
            _ => None,
        }
    }

    /// Its group.
    #[must_use]
    pub fn leaf(&self, node: &Node) -> Rc<WarmLeaf> {
        let leaf = self.sandbox.leaf(&node.pool, self.tag.borrow().leaf);
        node.warm.used(&leaf, node.descriptor_limit);
        leaf
    }

    /// Its group, of which no file is opened for good.
    #[must_use]
    pub fn cold_leaf(&self, node: &Node) -> Leaf {
        Leaf::clone(&self.sandbox.leaf(&node.pool, self.tag.borrow().leaf))
    }

    /// Moves on and tells everybody.
    pub fn enter(&self, phase: Phase) {
        let runs = phase.is_running();
        if self.phase.replace(phase).is_running() && !runs {
            self.sandbox.running.set(self.sandbox.running.get() - 1);
        }
        self.changed.notify_waiters();
        self.sandbox.changed.notify_waiters();
    }

    /// Counts its descriptors: a pidfd and two pipes, with standard input its pipe and buffer, and what it listens with.
    pub fn hold(&self, node: &Node) {
        let tag = self.tag.borrow();
        let more = if tag.stdin { 5 } else { 3 } + u64::from(tag.listens);
        node.held
            .set(node.held.get() + more - self.holds.replace(more));
    }

    /// It has none any more.
    pub fn release(&self, node: &Node) {
        self.released.set(true);
        self.unlisten(node);
        node.held.set(node.held.get() - self.holds.replace(0));
    }

    fn unlisten(&self, node: &Node) {
        if let Some(calls) = &node.calls {
            // What was answered is known by the number that is forgotten.
            audit::calls::drain(node);
            calls.remove(self);
        }
    }

    /// How many descriptors the keeper was given for it; what it has opened itself comes after them.
    #[must_use]
    pub fn given(&self) -> usize {
        let tag = self.tag.borrow();
        let streams = if tag.merged && !tag.terminal { 1 } else { 2 };
        streams + if tag.session { 3 } else { 0 }
    }

    /// Writes the tag to the keeper.
    pub async fn retag(&self, node: &Node) {
        let tag = Tag::Exec(self.tag.borrow().clone());
        write_tag(node, exec_object(&self.sandbox.id, &self.id), &tag).await;
    }

    /// Waits until `done` says so.
    pub async fn until<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            let mut told = std::pin::pin!(self.changed.notified());
            told.as_mut().enable();
            if let Some(value) = done(self) {
                return value;
            }
            told.await;
        }
    }

    /// As the edge sees it.
    #[must_use]
    pub fn state(&self) -> ExecState {
        let end = match &*self.phase.borrow() {
            Phase::Ended(end) => Some(end.clone()),
            _ => None,
        };
        ExecState {
            exec_id: self.id.clone(),
            state: if self.is_running() {
                "running"
            } else {
                "ended"
            }
            .into(),
            argv: self.tag.borrow().argv.clone(),
            started_at: sys::unix_time(self.started_ns.get()),
            stdout_total: end
                .as_ref()
                .map_or_else(|| self.streams[0].log.total(), |end| end.stdout_total),
            stderr_total: end
                .as_ref()
                .map_or_else(|| self.streams[1].log.total(), |end| end.stderr_total),
            end,
        }
    }

    /// Takes what the pipes hold now.
    pub fn drain(&self) {
        pump::drain(self);
    }

    /// The sandbox is empty: no more output can come.
    pub fn let_go(&self, node: &Node) {
        pump::drain(self);
        self.unlisten(node);
        for stream in &self.streams {
            stream.pipe.replace(None);
            stream.log.close();
        }
        self.terminal.replace(None);
        self.stdin.replace(None);
        node.cancel_timer(&crate::timers::Timer::Timeout(self.id.clone()));
        node.cancel_timer(&crate::timers::Timer::Grace(self.id.clone()));
        self.changed.notify_waiters();
    }
}
