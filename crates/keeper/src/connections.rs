//! The keeper's connections: who speaks, what waits to be sent.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use dsec_proto::keeper::{Answer, Message, Refusal, HOLDER_OBJECTS};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::SocketFlags;

use crate::note;
use crate::packet;
use crate::poll::{Poll, Token};

/// Connections at once, the runtime's included.
const MOST: usize = 64;
/// A peer with so many unread packets is not read from until it reads.
const UNREAD_MOST: usize = 256;

/// Who asked, and under which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) connection: u32,
    pub(crate) request: u64,
}

/// What a peer may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Runtime,
    Control,
    Holder,
}

impl Role {
    /// Whether an object concerns this peer: the layer holder has its own, and the runtime all others.
    pub(crate) fn sees(self, object_id: &str) -> bool {
        let of_the_holder = object_id.starts_with(HOLDER_OBJECTS);
        self == Self::Control || of_the_holder == (self == Self::Holder)
    }
}

/// A packet that waits for room.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<Rc<OwnedFd>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) role: Option<Role>,
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// What is waited for: to read, to write.
    pub(crate) wanted: (bool, bool),
}

/// All of them, by number; numbers are not reused.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(crate) open: BTreeMap<u32, Connection>,
    next: u32,
    /// Nothing is read: the keeper is about to be replaced.
    paused: bool,
}

impl Connections {
    /// Take what waits at the listener; peers other than root are turned away.
    pub(crate) fn accept(&mut self, listener: &OwnedFd, poll: &Poll) {
        while let Ok(socket) =
            rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            let root = socket_peercred(&socket).is_ok_and(|peer| peer.uid.is_root());
            if !root || self.open.len() >= MOST {
                note::event("connection_refused", serde_json::json!({"root": root}));
                continue;
            }
            let connection = Connection {
                socket,
                role: None,
                outgoing: VecDeque::new(),
                wanted: (true, false),
            };
            self.add(self.next, connection, poll);
        }
    }

    /// Add an open connection under its number.
    pub(crate) fn add(&mut self, number: u32, connection: Connection, poll: &Poll) {
        self.next = self.next.max(number) + 1;
        if let Err(errno) = poll.add(&connection.socket, Token::Connection(number)) {
            note::event(
                "connection_lost",
                serde_json::json!({"reason": errno.to_string()}),
            );
            return;
        }
        self.open.insert(number, connection);
        self.flush(number, poll);
    }

    /// Read from nobody, or from everybody again.
    pub(crate) fn pause(&mut self, paused: bool, poll: &Poll) {
        self.paused = paused;
        let numbers: Vec<u32> = self.open.keys().copied().collect();
        for number in numbers {
            self.flush(number, poll);
        }
    }

    pub(crate) fn close(&mut self, number: u32, poll: &Poll) {
        if let Some(connection) = self.open.remove(&number) {
            poll.remove(&connection.socket);
        }
    }

    /// The runtime's connection.
    pub(crate) fn runtime(&self) -> Option<u32> {
        self.of(Role::Runtime)
    }

    /// The connection of one of the two that there is one of.
    pub(crate) fn of(&self, role: Role) -> Option<u32> {
        let has_role = |(number, connection): (&u32, &Connection)| {
            (connection.role == Some(role)).then_some(*number)
        };
        self.open.iter().find_map(has_role)
    }

    /// Answer a request; an asker that is gone needs none.
    pub(crate) fn reply(
        &mut self,
        asker: Asker,
        result: Result<Answer, Refusal>,
        fds: Vec<Rc<OwnedFd>>,
        poll: &Poll,
    ) {
        let message = Message::Reply {
            id: asker.request,
            result,
        };
        self.queue(asker.connection, &message, fds, poll);
    }

    /// Queue a message and send what can be sent.
    pub(crate) fn queue(
        &mut self,
        number: u32,
        message: &Message,
        fds: Vec<Rc<OwnedFd>>,
        poll: &Poll,
    ) {
        let Some(connection) = self.open.get_mut(&number) else {
            return;
        };
        match rmp_serde::to_vec_named(message) {
            Ok(bytes) => connection.outgoing.push_back(Outgoing { bytes, fds }),
            Err(error) => note::event(
                "unencodable",
                serde_json::json!({"reason": error.to_string()}),
            ),
        }
        self.flush(number, poll);
    }

    /// Send what can be sent without waiting.
    pub(crate) fn flush(&mut self, number: u32, poll: &Poll) {
        let Some(connection) = self.open.get_mut(&number) else {
            return;
        };
        while let Some(next) = connection.outgoing.front() {
            match packet::send(connection.socket.as_fd(), &next.bytes, &next.fds) {
                Ok(()) => drop(connection.outgoing.pop_front()),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    note::event(
                        "connection_lost",
                        serde_json::json!({"reason": errno.to_string()}),
                    );
                    self.close(number, poll);
                    return;
                }
            }
        }
        let unread = connection.outgoing.len();
        let wanted = (!self.paused && unread < UNREAD_MOST, unread > 0);
        if wanted != connection.wanted {
            connection.wanted = wanted;
            let token = Token::Connection(number);
            let _gone = poll.change(&connection.socket, token, wanted.0, wanted.1);
        }
    }

    /// Whether requests of this peer are read now.
    pub(crate) fn may_read(&self, number: u32) -> bool {
        let may = |connection: &Connection| connection.outgoing.len() < UNREAD_MOST;
        !self.paused && self.open.get(&number).is_some_and(may)
    }
}

/// A refusal without a plan's failure.
pub(crate) fn refusal(code: &str, message: impl Into<String>) -> Refusal {
    Refusal {
        code: code.to_owned(),
        message: message.into(),
        failure: None,
    }
}
