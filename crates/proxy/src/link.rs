//! The runtime's connection: what it tells, what is reported and asked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::packet;
use dsec_proto::proxy::{Refused, ToProxy, ToRuntime, VERSION};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{timeout_at, Instant};

use crate::state::State;

/// Reports are put together for so long.
const TOGETHER: Duration = Duration::from_millis(50);

/// One connection to the runtime.
pub struct Link {
    socket: AsyncFd<OwnedFd>,
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Result<OwnedFd, Refused>>>>,
}

/// Takes the runtime's end of a pair from `proxy.sock`, and serves it until it breaks. A newer one takes its place.
pub async fn serve(state: Rc<State>, stream: UnixStream) {
    match take(&stream).await {
        Ok(socket) => {
            let link = Rc::new(socket);
            state.link.replace(Some(Rc::clone(&link)));
            state.linked.notify_waiters();
            let broken = hear(&state, &link).await;
            tracing::warn!("the runtime is gone: {broken}");
            let mut present = state.link.borrow_mut();
            if present
                .as_ref()
                .is_some_and(|present| Rc::ptr_eq(present, &link))
            {
                *present = None;
            }
            link.waiting.borrow_mut().clear();
        }
        Err(error) => tracing::warn!("no connection from the runtime: {error}"),
    }
}

async fn take(stream: &UnixStream) -> io::Result<Link> {
    let mut byte = Vec::new();
    let receive = || packet::receive(&stream.as_fd(), &mut byte);
    let mut fds = stream.async_io(Interest::READABLE, receive).await?;
    let socket = fds.pop().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(Link {
        socket: watched(socket)?,
        next: Cell::new(1),
        waiting: RefCell::default(),
    })
}

fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd keeps its descriptor open for as long as it lives, and AsyncFd keeps its owner.
    let watched =
        unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) };
    watched.map_err(Into::into)
}

async fn hear(state: &Rc<State>, link: &Link) -> io::Error {
    let mut buffer = Vec::new();
    loop {
        let received = link.socket.async_io(Interest::READABLE, |fd| {
            packet::receive_any(fd, &mut buffer)
        });
        let fds = match received.await {
            Ok(_) if buffer.is_empty() => return io::ErrorKind::UnexpectedEof.into(),
            // What needs one that there is no room for is refused; the rest holds.
            Ok(fds) => fds.unwrap_or_default(),
            Err(error) => return error,
        };
        let said = rmp_serde::from_slice::<ToProxy>(&buffer).map_err(io::Error::other);
        let done = match said {
            Ok(said) => act(state, link, said, fds).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            return error;
        }
    }
}

async fn act(
    state: &Rc<State>,
    link: &Link,
    said: ToProxy,
    mut fds: Vec<OwnedFd>,
) -> io::Result<()> {
    match said {
        ToProxy::Hello { version } => {
            fault!("proxy.link.greeted");
            link.tell(&ToRuntime::Hello { version: VERSION }).await?;
            if version != VERSION {
                return Err(io::Error::other(format!("it speaks version {version}")));
            }
            for have in state.all() {
                link.tell(&have).await?;
            }
        }
        ToProxy::Set {
            turn,
            sandbox_id,
            ports,
            endpoints,
            egress,
        } => {
            fault!("proxy.link.told");
            let set = state.set(
                &sandbox_id,
                ports,
                endpoints,
                egress.map(|table| *table),
                fds,
            );
            fault!("proxy.link.set");
            // What was cut has been told so; let it end before this is reported.
            tokio::task::yield_now().await;
            if let Some(known) = state.find(&sandbox_id) {
                link.tell(&known.have()).await?;
            }
            let answer = match set {
                Ok(()) => ToRuntime::Applied { turn },
                Err(why) => ToRuntime::NotApplied {
                    turn,
                    sandbox_id,
                    why,
                },
            };
            link.tell(&answer).await?;
            fault!("proxy.link.applied");
        }
        ToProxy::All => {
            state.whole.set(true);
            state.completed.notify_waiters();
        }
        ToProxy::Drop { sandbox_id } => {
            state.forget(&sandbox_id);
            fault!("proxy.link.forgot");
        }
        ToProxy::Connected { id, refused } => {
            let waiting = link.waiting.borrow_mut().remove(&id);
            if let Some(waiting) = waiting {
                let outcome = match (refused, fds.pop()) {
                    (None, Some(socket)) => Ok(socket),
                    (refused, _) => Err(refused.unwrap_or(Refused::Node)),
                };
                let _ = waiting.send(outcome);
            }
        }
    }
    Ok(())
}

impl Link {
    async fn tell(&self, message: &ToRuntime) -> io::Result<()> {
        let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
        let send = |fd: &OwnedFd| packet::send(fd.as_fd(), &bytes, &[] as &[BorrowedFd<'_>]);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.get_ref().as_raw_fd()
    }
}

/// Tells of every change, for as long as the process lives.
pub async fn report(state: Rc<State>) {
    loop {
        state.stirred().await;
        tokio::time::sleep(TOGETHER).await;
        fault!("proxy.link.reporting");
        let link = state.link.borrow().clone();
        // A runtime that comes later is told everything.
        for have in state.take_changed() {
            if let Some(link) = &link {
                let _ = link.tell(&have).await;
            }
        }
    }
}

/// A connected socket of a sandbox's port.
///
/// # Errors
/// Why there is none; `NotYet` also while no runtime is connected.
pub async fn connect(
    state: &State,
    sandbox_id: &str,
    port: u16,
    end: Instant,
) -> Result<OwnedFd, Refused> {
    let link = state.link.borrow().clone();
    let Some(link) = link else {
        let _ = timeout_at(end, state.linked.notified()).await;
        return Err(Refused::NotYet);
    };
    let id = link.next.replace(link.next.get() + 1);
    let (told, outcome) = oneshot::channel();
    link.waiting.borrow_mut().insert(id, told);
    let ask = ToRuntime::Connect {
        id,
        sandbox_id: sandbox_id.to_owned(),
        port,
    };
    if link.tell(&ask).await.is_err() {
        return Err(Refused::NotYet);
    }
    match timeout_at(end, outcome).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Refused::NotYet),
        Err(_) => Err(Refused::Late),
    }
}
