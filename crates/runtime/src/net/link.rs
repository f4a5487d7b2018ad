//! The runtime's connection to the proxy. When it breaks everything is said again; nothing waits for it but who wants to
//! know that something is cut.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::packet;
use dsec_proto::proxy::{Refused, ToProxy, ToRuntime, VERSION};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::kernel::{poll, sys};
use crate::node::Node;

/// Between attempts: the proxy's socket is the keeper's and takes callers while no proxy lives.
const AGAIN: Duration = Duration::from_millis(50);
/// Between attempts that come to nothing again and again.
const MOST: Duration = Duration::from_secs(2);

/// What is to be said.
#[derive(Debug)]
pub enum Said {
    /// All about a sandbox, as it is when this is sent.
    Set {
        /// Answered when it is in force; 0 is nobody's.
        turn: u64,
        /// The sandbox.
        sandbox_id: String,
    },
    /// Everything was said.
    All,
    /// It is over.
    Drop {
        /// The sandbox.
        sandbox_id: String,
    },
    /// Answers a request.
    Connected {
        /// The request's.
        id: u64,
        /// The socket.
        outcome: Result<OwnedFd, Refused>,
    },
}

/// The way to the proxy.
pub struct ProxyLink {
    out: mpsc::UnboundedSender<Said>,
    turn: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<()>>>,
    connected: Cell<bool>,
    /// Whether the edge has told everything.
    told: Cell<bool>,
    descriptors: Cell<u64>,
}

impl ProxyLink {
    /// One, and what [`run`] is to send.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Said>) {
        let (out, queue) = mpsc::unbounded_channel();
        let link = Self {
            out,
            turn: Cell::new(1),
            waiting: RefCell::default(),
            connected: Cell::new(false),
            told: Cell::new(false),
            descriptors: Cell::new(0),
        };
        (link, queue)
    }

    /// Says something, if there is a proxy; a later one is told everything.
    pub fn say(&self, said: Said) {
        let _ = self.out.send(said);
    }

    /// Descriptors more or less are held.
    pub fn holds(&self, change: i64) {
        self.descriptors
            .set(self.descriptors.get().saturating_add_signed(change));
    }

    /// Descriptors that are held: listeners and ledgers.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.descriptors.get()
    }

    /// The edge has told everything: a proxy may take what it does not know for not exposed.
    pub fn told_all(&self) {
        self.told.set(true);
        self.say(Said::All);
    }

    /// Says all about a sandbox and waits until it is in force. Without a proxy it is: nothing is connected.
    ///
    /// # Errors
    /// `node_error` when a proxy that lives does not answer in time.
    pub async fn apply(&self, sandbox_id: &str, patience: Duration) -> WireResult<()> {
        if !self.connected.get() {
            return Ok(());
        }
        let turn = self.turn.replace(self.turn.get() + 1);
        let (told, applied) = oneshot::channel();
        self.waiting.borrow_mut().insert(turn, told);
        self.say(Said::Set {
            turn,
            sandbox_id: sandbox_id.to_owned(),
        });
        let outcome = tokio::time::timeout(patience, applied).await;
        self.waiting.borrow_mut().remove(&turn);
        match outcome {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(WireError::node("ports", "the node's proxy does not answer").about(sandbox_id))
            }
        }
    }
}

/// Keeps a connection for as long as the runtime lives.
pub async fn run(node: Rc<Node>, mut queue: mpsc::UnboundedReceiver<Said>) {
    let mut complained = false;
    let mut pause = AGAIN;
    loop {
        let begun = Instant::now();
        match dial(&node).await {
            Ok(socket) => {
                // What waits to be said is said below, with all the rest.
                while queue.try_recv().is_ok() {}
                node.proxy.connected.set(true);
                let broken = talk(&node, &socket, &mut queue).await;
                tracing::warn!("the connection to the proxy is gone: {broken}");
                node.proxy.connected.set(false);
                node.proxy.waiting.borrow_mut().clear();
                nobody_connected(&node);
                complained = false;
            }
            Err(error) if !complained => {
                tracing::warn!("no proxy: {error}");
                complained = true;
            }
            Err(_) => {}
        }
        pause = if begun.elapsed() > MOST {
            AGAIN
        } else {
            pause * 2
        };
        tokio::time::sleep(pause.min(MOST)).await;
    }
}

/// Sandboxes whose connections have just gone may be idle from now on.
fn nobody_connected(node: &Node) {
    let sandboxes: Vec<_> = node.sandboxes.borrow().values().cloned().collect();
    for sandbox in sandboxes {
        let mut net = sandbox.net.borrow_mut();
        net.connections(0);
        net.connected.clear();
    }
}

async fn dial(node: &Node) -> io::Result<AsyncFd<OwnedFd>> {
    let stream = UnixStream::connect(node.config.run_dir.join("proxy.sock")).await?;
    let (ours, theirs) = sys::packet_pair()?;
    let send = || packet::send(stream.as_fd(), &[0], &[theirs.as_fd()]);
    stream.async_io(Interest::WRITABLE, send).await?;
    poll::watch(ours, Interest::READABLE | Interest::WRITABLE)
}

async fn talk(
    node: &Rc<Node>,
    socket: &AsyncFd<OwnedFd>,
    queue: &mut mpsc::UnboundedReceiver<Said>,
) -> io::Error {
    let ended = tokio::select! {
        ended = speak(node, socket, queue) => ended,
        ended = hear(node, socket) => ended,
    };
    ended
        .err()
        .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

async fn speak(
    node: &Node,
    socket: &AsyncFd<OwnedFd>,
    queue: &mut mpsc::UnboundedReceiver<Said>,
) -> io::Result<()> {
    send(socket, &ToProxy::Hello { version: VERSION }, &[]).await?;
    let known: Vec<String> = node.sandboxes.borrow().keys().cloned().collect();
    for sandbox_id in known {
        set(node, socket, 0, &sandbox_id).await?;
    }
    if node.proxy.told.get() {
        send(socket, &ToProxy::All, &[]).await?;
    }
    while let Some(said) = queue.recv().await {
        match said {
            Said::Set { turn, sandbox_id } => set(node, socket, turn, &sandbox_id).await?,
            Said::All => send(socket, &ToProxy::All, &[]).await?,
            Said::Drop { sandbox_id } => send(socket, &ToProxy::Drop { sandbox_id }, &[]).await?,
            Said::Connected { id, outcome } => {
                let refused = outcome.as_ref().err().copied();
                let fds: Vec<_> = outcome.iter().map(AsFd::as_fd).collect();
                send(socket, &ToProxy::Connected { id, refused }, &fds).await?;
            }
        }
    }
    Ok(())
}

/// All about one sandbox, if there is anything to say.
async fn set(node: &Node, socket: &AsyncFd<OwnedFd>, turn: u64, id: &str) -> io::Result<()> {
    let Ok(sandbox) = node.live(id) else {
        node.proxy.waiting.borrow_mut().remove(&turn);
        let sandbox_id = id.to_owned();
        return send(socket, &ToProxy::Drop { sandbox_id }, &[]).await;
    };
    let (message, listeners) = {
        let net = sandbox.net.borrow();
        let empty = net.ports.is_empty() && net.endpoints.is_empty() && net.egress.is_none();
        if !net.told || (turn == 0 && empty) {
            node.proxy.waiting.borrow_mut().remove(&turn);
            return Ok(());
        }
        let copies = net
            .listeners
            .iter()
            .chain(&net.ledger)
            .chain(net.egress.iter().flat_map(|_| &net.outward))
            .map(OwnedFd::try_clone);
        let message = ToProxy::Set {
            turn,
            sandbox_id: id.to_owned(),
            ports: net.ports.clone(),
            endpoints: net.endpoints.clone(),
            egress: net.egress.clone(),
        };
        (message, copies.collect::<io::Result<Vec<_>>>()?)
    };
    let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
    send(socket, &message, &fds).await
}

async fn send(
    socket: &AsyncFd<OwnedFd>,
    message: &ToProxy,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    let send = |fd: &OwnedFd| packet::send(fd.as_fd(), &bytes, fds);
    socket.async_io(Interest::WRITABLE, send).await
}

/// Never waits for anything but the proxy's words, so that the proxy never waits for long.
async fn hear(node: &Rc<Node>, socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let receive = |fd: &OwnedFd| packet::receive(fd, &mut buffer);
        socket.async_io(Interest::READABLE, receive).await?;
        if buffer.is_empty() {
            return Ok(());
        }
        match rmp_serde::from_slice(&buffer).map_err(io::Error::other)? {
            ToRuntime::Hello { version } if version == VERSION => {}
            ToRuntime::Hello { version } => {
                return Err(io::Error::other(format!("it speaks version {version}")))
            }
            ToRuntime::Applied { turn } => drop(
                node.proxy
                    .waiting
                    .borrow_mut()
                    .remove(&turn)
                    .map(|told| told.send(())),
            ),
            ToRuntime::Have {
                sandbox_id,
                inbound,
                connections,
            } => match node.live(&sandbox_id) {
                Ok(sandbox) => {
                    let mut net = sandbox.net.borrow_mut();
                    net.connected = connections;
                    net.connections(inbound);
                    if net.inbound > 0 && net.busy.is_none() {
                        net.busy = Some(sandbox.stream());
                    }
                }
                Err(_) => node.proxy.say(Said::Drop { sandbox_id }),
            },
            ToRuntime::Connect {
                id,
                sandbox_id,
                port,
            } => {
                let node = Rc::clone(node);
                tokio::task::spawn_local(async move {
                    let outcome = super::connect(&node, &sandbox_id, port).await;
                    node.proxy.say(Said::Connected { id, outcome });
                });
            }
        }
    }
}
