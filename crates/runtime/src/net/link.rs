//! The runtime's connection to the proxy. When it breaks everything is said again; nothing waits for it but who wants to
//! know that something is cut. What cannot be said of one sandbox is said again later, and keeps nothing of the others.

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
use tokio::sync::{mpsc, oneshot, Notify};
use tokio::time::timeout_at;

use crate::kernel::{poll, sys};
use crate::node::Node;

/// Between attempts: the proxy's socket is the keeper's and takes callers while no proxy lives.
const AGAIN: Duration = Duration::from_millis(50);
/// Between attempts that come to nothing again and again.
const MOST: Duration = Duration::from_secs(2);
/// A proxy that has been gone for so long is not waited for.
const GONE: Duration = Duration::from_secs(5);
/// Before what could not be said is said again.
const LATER: Duration = Duration::from_secs(2);

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
    waiting: RefCell<HashMap<u64, oneshot::Sender<Result<(), String>>>>,
    connected: Cell<bool>,
    linked: Notify,
    /// While it is not connected.
    gone_since: Cell<Instant>,
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
            linked: Notify::new(),
            gone_since: Cell::new(Instant::now()),
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

    /// Whether there is a proxy.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.connected.get()
    }

    /// Waits for a proxy; whether there is one.
    async fn until_linked(&self, end: Instant) -> bool {
        loop {
            let mut told = std::pin::pin!(self.linked.notified());
            told.as_mut().enable();
            if self.connected.get() {
                return true;
            }
            let end = end.min(self.gone_since.get() + GONE);
            if timeout_at(end.into(), told).await.is_err() {
                return false;
            }
        }
    }

    /// Says all about a sandbox and waits until it is in force: while there is no proxy, until there is one that was told.
    ///
    /// # Errors
    /// `node_error` when it is not in force in time; it is said again whenever there is a proxy.
    pub async fn apply(&self, sandbox_id: &str, patience: Duration) -> WireResult<()> {
        let end = Instant::now() + patience;
        let failed = |why: &str| Err(WireError::node("ports", why).about(sandbox_id));
        while self.until_linked(end).await {
            let turn = self.turn.replace(self.turn.get() + 1);
            let (told, applied) = oneshot::channel();
            self.waiting.borrow_mut().insert(turn, told);
            self.say(Said::Set {
                turn,
                sandbox_id: sandbox_id.to_owned(),
            });
            let outcome = timeout_at(end.into(), applied).await;
            self.waiting.borrow_mut().remove(&turn);
            match outcome {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(why))) => return failed(&why),
                Ok(Err(_)) => {} // the connection broke before the answer
                Err(_) => return failed("the node's proxy does not answer"),
            }
        }
        failed("the node's proxy is not there")
    }

    fn answer(&self, turn: u64, outcome: Result<(), String>) {
        let waiting = self.waiting.borrow_mut().remove(&turn);
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
        }
    }

    fn became(&self, connected: bool) {
        self.connected.set(connected);
        if connected {
            self.linked.notify_waiters();
        } else {
            self.gone_since.set(Instant::now());
            self.waiting.borrow_mut().clear();
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
                node.proxy.became(true);
                let broken = talk(&node, &socket, &mut queue).await;
                tracing::warn!("the connection to the proxy is gone: {broken}");
                node.proxy.became(false);
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
    node: &Rc<Node>,
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

/// All about one sandbox, if there is anything to say. Only a broken connection is an error.
async fn set(node: &Rc<Node>, socket: &AsyncFd<OwnedFd>, turn: u64, id: &str) -> io::Result<()> {
    let Ok(sandbox) = node.live(id) else {
        node.proxy.answer(turn, Ok(()));
        let sandbox_id = id.to_owned();
        return send(socket, &ToProxy::Drop { sandbox_id }, &[]).await;
    };
    let said = {
        let net = sandbox.net.borrow();
        let empty = net.ports.is_empty() && net.endpoints.is_empty() && net.egress.is_none();
        if !net.told || (turn == 0 && empty) {
            node.proxy.answer(turn, Ok(()));
            return Ok(());
        }
        let message = ToProxy::Set {
            turn,
            sandbox_id: id.to_owned(),
            ports: net.ports.clone(),
            endpoints: net.endpoints.clone(),
            egress: net.egress.as_ref().map(|table| Box::new(table.proxied())),
        };
        let copies = net
            .listeners
            .iter()
            .chain(&net.ledger)
            .chain(net.egress.iter().flat_map(|_| &net.outward))
            .map(OwnedFd::try_clone);
        copies
            .collect::<io::Result<Vec<_>>>()
            .map(|fds| (message, fds))
    };
    let (message, fds) = match said {
        Ok(said) => said,
        Err(error) => {
            not_said(node, turn, id, error.to_string());
            return Ok(());
        }
    };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    match send(socket, &message, &fds).await {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            not_said(node, turn, id, "there is too much to say of it".into());
            Ok(())
        }
        sent => sent,
    }
}

/// Notes that something was not said of a sandbox, and says it again later.
fn not_said(node: &Rc<Node>, turn: u64, sandbox_id: &str, why: String) {
    tracing::warn!(sandbox_id, "the proxy could not be told: {why}");
    node.proxy.answer(turn, Err(why));
    let (node, sandbox_id) = (Rc::clone(node), sandbox_id.to_owned());
    tokio::task::spawn_local(async move {
        tokio::time::sleep(LATER).await;
        if node.live(&sandbox_id).is_ok() {
            node.proxy.say(Said::Set {
                turn: 0,
                sandbox_id,
            });
        }
    });
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
            ToRuntime::Applied { turn } => node.proxy.answer(turn, Ok(())),
            ToRuntime::NotApplied {
                turn,
                sandbox_id,
                why,
            } => not_said(node, turn, &sandbox_id, why),
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
