//! From pipes into segment files.

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::Interest;

use super::{Exec, Phase, Stream, Terminal};
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::output::{Pull, SURELY_KEPT};

/// How often a terminal is looked at that nobody has open while its program runs: it may be opened again.
const HUNG_UP: Duration = Duration::from_millis(50);
/// Most bytes that are moved before others have their turn.
const TURN: usize = 1 << 20;
/// Room of a pipe until it is given more.
const PIPE: usize = 64 << 10;
/// Room of a pipe that was found full: its program and we wait for each other less often.
const WIDE_PIPE: usize = 1 << 20;
/// Of such a pipe less is not taken at once again: a wakeup for each write costs more than the bytes.
const WORTHWHILE: usize = 64 << 10;
/// How long more is waited for then. What a wide pipe holds in that time is as much as a machine moves.
const PAUSE: Duration = Duration::from_millis(1);
/// More often than a terminal, which buffers some 80 KiB, has something.
const TERMINAL_PULLS: usize = 1024;
/// With backpressure, what may be on its way to a reader, who asks for it again when the connection breaks: a credit of 4 MiB,
/// with room for clients that give more.
const UNDERWAY: u64 = 16 << 20;
/// With backpressure, how far a program may be ahead of what was sent: never so far that something which did not arrive is dropped.
const AHEAD: u64 = SURELY_KEPT - UNDERWAY;

/// Follows both streams until their pipes end.
pub fn follow(node: &Rc<Node>, exec: &Rc<Exec>) {
    for index in 0..exec.streams.len() {
        let (node, exec) = (Rc::clone(node), Rc::clone(exec));
        tokio::task::spawn_local(async move {
            let terminal = exec.terminal.borrow().clone();
            let followed = match terminal {
                Some(terminal) if index == 0 => screen(&exec, &terminal).await,
                _ => stream(&exec, index).await,
            };
            if let Err(error) = followed {
                tracing::error!(
                    exec_id = exec.id,
                    channel = index + 1,
                    "output can no longer be recorded: {error}"
                );
            }
            exec.streams[index].pipe.replace(None);
            exec.streams[index].log.close();
            if index == 0 {
                exec.terminal.replace(None);
            }
            exec.changed.notify_waiters();
            super::settle(&node, &exec).await;
        });
    }
}

/// A descriptor that is watched and that others have as well.
struct Watched(Rc<OwnedFd>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

async fn stream(exec: &Exec, index: usize) -> std::io::Result<()> {
    let stream = &exec.streams[index];
    let Some(pipe) = stream.pipe.borrow().clone() else {
        return Ok(());
    };
    let watched = poll::watch(Watched(Rc::clone(&pipe)), Interest::READABLE)?;
    let mut room = PIPE;
    loop {
        let mut ready = tokio::select! {
            ready = watched.ready(Interest::READABLE) => ready?,
            () = let_go(exec, index) => return Ok(()),
        };
        has_room(exec, stream).await;
        match stream.log.pull(&pipe, TURN)? {
            Pull::Bytes(moved) => {
                if moved >= room && room < WIDE_PIPE {
                    // Refused where the node's user has too much in pipes: it stays as it is.
                    let _ = sys::widen_pipe(&*pipe, WIDE_PIPE);
                    room = WIDE_PIPE;
                }
                exec.changed.notify_waiters();
                stream.log.rest();
                if room == WIDE_PIPE && moved < WORTHWHILE {
                    tokio::time::sleep(PAUSE).await;
                } else {
                    tokio::task::yield_now().await;
                }
            }
            Pull::Empty => ready.clear_ready(),
            Pull::End => return Ok(()),
        }
    }
}

/// Follows a terminal until nobody has it open and its program has ended.
async fn screen(exec: &Exec, terminal: &Terminal) -> std::io::Result<()> {
    let stream = &exec.streams[0];
    let watched = poll::watch(terminal.master.try_clone()?, Interest::READABLE)?;
    loop {
        let mut ready = tokio::select! {
            ready = watched.ready(Interest::READABLE) => ready?,
            () = let_go(exec, 0) => return Ok(()),
        };
        has_room(exec, stream).await;
        match terminal.pull(stream)? {
            Pull::Bytes(_) => {
                exec.changed.notify_waiters();
                stream.log.rest();
                tokio::task::yield_now().await;
            }
            Pull::Empty => ready.clear_ready(),
            Pull::End if !matches!(&*exec.phase.borrow(), Phase::Running) => return Ok(()),
            // The readiness of what is hung up does not go away, so that there is nothing to wait for but the end.
            Pull::End => drop(tokio::time::timeout(HUNG_UP, ended(exec)).await),
        }
    }
}

async fn ended(exec: &Exec) {
    let ended = |exec: &Exec| (!matches!(&*exec.phase.borrow(), Phase::Running)).then_some(());
    exec.until(ended).await;
}

/// Returns once the sandbox is empty and the stream was let go.
async fn let_go(exec: &Exec, index: usize) {
    exec.until(|exec| exec.streams[index].pipe.borrow().is_none().then_some(()))
        .await;
}

/// With backpressure, waits for a reader; a program that has ended is not held up any more.
async fn has_room(exec: &Exec, stream: &Stream) {
    if !exec.tag.borrow().backpressure {
        return;
    }
    let free = |exec: &Exec| {
        let over =
            !matches!(&*exec.phase.borrow(), Phase::Running) || stream.pipe.borrow().is_none();
        (over || stream.log.total() < stream.taken.get() + AHEAD).then_some(())
    };
    exec.until(free).await;
}

/// Takes what there is now, and no more: somebody in the background may write for ever.
pub fn drain(exec: &Exec) {
    exec.streams.iter().for_each(drain_pipe);
    let terminal = exec.terminal.borrow().clone();
    if let Some(terminal) = terminal {
        for _ in 0..TERMINAL_PULLS {
            match terminal.pull(&exec.streams[0]) {
                Ok(Pull::Bytes(_)) => {}
                Ok(_) => return,
                Err(error) => return tracing::error!("output is lost: {error}"),
            }
        }
    }
}

fn drain_pipe(stream: &Stream) {
    let Some(pipe) = stream.pipe.borrow().clone() else {
        return;
    };
    let mut waiting = 0i32;
    // SAFETY: FIONREAD writes one int.
    unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut waiting) };
    let mut left = waiting as usize;
    while left > 0 {
        match stream.log.pull(&pipe, left) {
            Ok(Pull::Bytes(moved)) => left -= moved.min(left),
            Ok(_) => return,
            Err(error) => {
                tracing::error!("output is lost: {error}");
                return;
            }
        }
    }
}
