//! The runtime's side of `keeper.sock`.
//!
//! Calls are pipelined. When the keeper executes itself anew the connection breaks; every call is idempotent by its
//! object, so the ones without an answer are sent again over the next connection.

mod packet;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::keeper::{Answer, Call, Ended, Message, Object, Refusal, Request, VERSION};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot, Mutex};
use tokio::time::Instant;

use crate::kernel::poll;
use packet::Packet;

/// How long a lost keeper may take to come back under the same PID.
const RECONNECT: Duration = Duration::from_secs(2);

const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

type Outcome = Result<(Answer, Vec<OwnedFd>), Refusal>;

struct Waiting {
    call: Call,
    fds: Vec<RawFd>,
    answer: oneshot::Sender<Outcome>,
}

/// Sent to the node when a process has ended, or when the keeper was away and everything has to be looked at again.
#[derive(Debug)]
pub enum Notice {
    /// A process ended.
    Ended(String, Ended),
    /// The keeper is back: ends may have been missed.
    Reconnected,
    /// It is not coming back.
    Lost,
}

/// A connection to the keeper.
pub struct Keeper {
    path: PathBuf,
    socket: RefCell<Rc<AsyncFd<OwnedFd>>>,
    next: Cell<u64>,
    /// Senders go one after the other: when there is room again, one is woken and not all of them.
    turn: Mutex<()>,
    waiting: RefCell<HashMap<u64, Waiting>>,
    notices: mpsc::UnboundedSender<Notice>,
}

impl Keeper {
    /// Connects and says hello. The keeper may not have seen yet that a former runtime is gone.
    ///
    /// # Errors
    /// When there is no keeper, or one of another version, or another runtime stays connected.
    pub async fn connect(path: PathBuf) -> io::Result<(Rc<Self>, mpsc::UnboundedReceiver<Notice>)> {
        let patience = Instant::now() + RECONNECT;
        loop {
            let (notices, receiver) = mpsc::unbounded_channel();
            let socket = RefCell::new(Rc::new(poll::watch(packet::dial(&path)?, BOTH)?));
            let (path, next) = (path.clone(), Cell::new(1));
            let keeper = Rc::new(Self {
                path,
                socket,
                next,
                turn: Mutex::new(()),
                waiting: RefCell::default(),
                notices,
            });
            let listening = tokio::task::spawn_local(Rc::clone(&keeper).listen());
            match keeper.hello().await {
                Ok(()) => return Ok((keeper, receiver)),
                Err(refusal) if refusal.code == "busy" && Instant::now() < patience => {
                    listening.abort();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(refusal) => return Err(io::Error::other(refusal.message)),
            }
        }
    }

    async fn hello(&self) -> Result<(), Refusal> {
        self.call(
            Call::Hello {
                version: VERSION,
                role: "runtime".into(),
            },
            &[],
        )
        .await
        .map(drop)
    }

    /// Asks something. The descriptors stay the caller's and must live until the answer.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn call(&self, call: Call, fds: &[RawFd]) -> Outcome {
        #[cfg(feature = "weaken")]
        let call = crate::weaken::edited(call);
        let id = self.next.replace(self.next.get() + 1);
        let (answer, outcome) = oneshot::channel();
        let packet = Packet::of(
            &Request {
                id,
                call: call.clone(),
            },
            fds,
        );
        self.waiting.borrow_mut().insert(
            id,
            Waiting {
                call,
                fds: fds.to_vec(),
                answer,
            },
        );
        let sent = match packet {
            Ok(packet) => {
                let _turn = self.turn.lock().await;
                let socket = Rc::clone(&self.socket.borrow());
                packet.send(&socket).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            // A broken connection is the listener's to mend; anything else is this call's own fault.
            if !matches!(
                error.raw_os_error(),
                Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
            ) {
                self.waiting.borrow_mut().remove(&id);
                return Err(refusal(
                    "invalid",
                    format!("the request could not be sent: {error}"),
                ));
            }
        }
        outcome
            .await
            .unwrap_or_else(|_| Err(refusal("gone", "the keeper is gone".into())))
    }

    /// As [`Self::call`], for calls that answer with nothing.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn tell(&self, call: Call, fds: &[RawFd]) -> Result<(), Refusal> {
        self.call(call, fds).await.map(drop)
    }

    /// Everything that the keeper holds.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn list(&self) -> Result<Vec<Object>, Refusal> {
        let mut all: Vec<Object> = Vec::new();
        loop {
            let after = all.last().map(|object| object.object_id.clone());
            match self.call(Call::List { after }, &[]).await?.0 {
                Answer::Objects { objects, more } => {
                    let done = !more || objects.is_empty();
                    all.extend(objects);
                    if done {
                        return Ok(all);
                    }
                }
                other => return Err(refusal("invalid", format!("unexpected answer {other:?}"))),
            }
        }
    }

    /// Forgets an object; one that is not known (any more) is no fault.
    pub async fn ack(&self, object_ids: Vec<String>) {
        for some in object_ids.chunks(256) {
            if let Err(refusal) = self
                .tell(
                    Call::Ack {
                        object_ids: some.to_vec(),
                    },
                    &[],
                )
                .await
            {
                tracing::warn!(objects = ?some, code = refusal.code, "acknowledgement refused: {}", refusal.message);
            }
        }
    }

    async fn listen(self: Rc<Self>) {
        loop {
            let socket = Rc::clone(&self.socket.borrow());
            let mut buffer = vec![0; packet::ROOM];
            let error = loop {
                match packet::receive(&socket, &mut buffer).await {
                    Ok((0, _)) => break io::Error::from(io::ErrorKind::UnexpectedEof),
                    Ok((length, fds)) => self.take(&buffer[..length], fds),
                    Err(error) => break error,
                }
            };
            tracing::warn!("connection to the keeper lost: {error}");
            if !self.reconnect().await {
                let _ = self.notices.send(Notice::Lost);
                return;
            }
        }
    }

    fn take(&self, bytes: &[u8], fds: Vec<OwnedFd>) {
        match rmp_serde::from_slice(bytes) {
            Ok(Message::Reply { id, result }) => {
                if let Some(waiting) = self.waiting.borrow_mut().remove(&id) {
                    let _ = waiting.answer.send(result.map(|answer| (answer, fds)));
                }
            }
            Ok(Message::Ended { object_id, end }) => {
                let _ = self.notices.send(Notice::Ended(object_id, end));
            }
            Err(error) => tracing::error!("the keeper sent what cannot be read: {error}"),
        }
    }

    async fn reconnect(self: &Rc<Self>) -> bool {
        let end = Instant::now() + RECONNECT;
        let socket = loop {
            let dialled = packet::dial(&self.path).and_then(|socket| poll::watch(socket, BOTH));
            match dialled {
                Ok(socket) => break Rc::new(socket),
                Err(_) if Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(20)).await
                }
                Err(_) => return false,
            }
        };
        *self.socket.borrow_mut() = Rc::clone(&socket);
        let hello = Request {
            id: 0,
            call: Call::Hello {
                version: VERSION,
                role: "runtime".into(),
            },
        };
        let mut again: Vec<(Request, Vec<RawFd>)> = vec![(hello, Vec::new())];
        for (id, waiting) in self.waiting.borrow().iter() {
            again.push((
                Request {
                    id: *id,
                    call: waiting.call.clone(),
                },
                waiting.fds.clone(),
            ));
        }
        again.sort_by_key(|(request, _)| request.id);
        for (request, fds) in again {
            let sent = match Packet::of(&request, &fds) {
                Ok(packet) => packet.send(&socket).await,
                Err(error) => Err(error),
            };
            if sent.is_err() {
                return false;
            }
        }
        let _ = self.notices.send(Notice::Reconnected);
        true
    }
}

fn refusal(code: &str, message: String) -> Refusal {
    Refusal {
        code: code.into(),
        message,
        failure: None,
    }
}

/// Descriptors that travel with a plan, by the positions that the plan names.
#[derive(Default)]
pub struct Parcel {
    owned: Vec<OwnedFd>,
    numbers: Vec<RawFd>,
}

impl Parcel {
    /// Adds one that is only needed for this journey.
    pub fn give(&mut self, fd: OwnedFd) -> u16 {
        let index = self.lend(&fd);
        self.owned.push(fd);
        index
    }

    /// Adds one that the caller keeps, at least until the answer.
    pub fn lend(&mut self, fd: &impl AsRawFd) -> u16 {
        self.numbers.push(fd.as_raw_fd());
        (self.numbers.len() - 1) as u16
    }

    /// Numbers in order.
    #[must_use]
    pub fn numbers(&self) -> &[RawFd] {
        &self.numbers
    }
}
