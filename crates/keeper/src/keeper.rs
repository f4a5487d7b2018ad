//! The keeper's state and its loop.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use dsec_session::home::Home;
use rustix::io::Errno;

use crate::children::{Children, Happened, Owner};
use crate::clock;
use crate::connections::{Asker, Connections};
use crate::note;
use crate::objects::Objects;
use crate::packet::{self, Incoming};
use crate::poll::{Poll, Token};
use crate::process;
use crate::reexec::Reexec;
use crate::run_dir::RunDir;
use crate::services::Services;

/// Packets of one peer before others have their turn.
const PACKETS: usize = 16;

/// Everything the keeper knows.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) poll: Poll,
    pub(crate) home: Home,
    pub(crate) run_dir: RunDir,
    pub(crate) signals: OwnedFd,
    pub(crate) children: Children,
    pub(crate) objects: Objects,
    pub(crate) connections: Connections,
    pub(crate) services: Services,
    /// Those who asked for the end, once it has begun.
    pub(crate) shutdown: Option<Vec<Asker>>,
    /// An exec in place that waits for its moment.
    pub(crate) reexec: Option<Reexec>,
    /// Where the keeper's own program was found, for the exec in place.
    pub(crate) program: PathBuf,
    /// Where tests arm fault points.
    pub(crate) fault_points: Option<PathBuf>,
    buffer: Vec<u8>,
}

impl Keeper {
    /// A keeper without state of its own yet.
    pub(crate) fn new(run_dir: RunDir, home: Home) -> Result<Self, Errno> {
        let signals = process::signal_fd()?;
        let poll = Poll::new()?;
        poll.add(&signals, Token::Signals)?;
        poll.add(&run_dir.listener, Token::Listener)?;
        Ok(Self {
            poll,
            home,
            run_dir,
            signals,
            children: Children::default(),
            objects: Objects::default(),
            connections: Connections::default(),
            services: Services::default(),
            shutdown: None,
            reexec: None,
            program: std::env::current_exe().map_err(|_| Errno::NOENT)?,
            fault_points: None,
            buffer: Vec::new(),
        })
    }

    /// Work until the end.
    pub(crate) fn work(&mut self) -> Result<(), Errno> {
        loop {
            if self.shutdown.is_some() && self.tend_shutdown() {
                self.finish();
                return Ok(());
            }
            self.turn()?;
        }
    }

    /// One turn: do what is due, wait, handle what came.
    pub(crate) fn turn(&mut self) -> Result<(), Errno> {
        if self.shutdown.is_none() {
            self.try_reexec();
        }
        self.tend_services();
        for token in self.poll.wait(self.patience())? {
            self.handle(token);
        }
        Ok(())
    }

    /// How long nothing needs to be done.
    fn patience(&self) -> Option<Duration> {
        let due = self.services.next_due()?;
        Some(Duration::from_nanos(due.saturating_sub(clock::now_ns())))
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Signals => self.handle_signals(),
            Token::Listener => self.connections.accept(&self.run_dir.listener, &self.poll),
            Token::Connection(number) => self.handle_connection(number),
            Token::Channel(pid) => {
                let happened = self.children.hear(pid, &self.poll);
                happened.into_iter().for_each(|event| self.tell(event));
            }
        }
    }

    fn handle_signals(&mut self) {
        for signal in process::take_signals(&self.signals) {
            if signal == libc::SIGTERM || signal == libc::SIGINT {
                note::event("told_to_end", serde_json::json!({"signal": signal}));
                self.begin_shutdown();
            }
        }
        self.reap();
    }

    /// Reap what has ended, and tell it.
    pub(crate) fn reap(&mut self) {
        let happened = self.children.reap(&self.poll);
        happened.into_iter().for_each(|event| self.tell(event));
    }

    fn tell(&mut self, event: Happened) {
        match event {
            Happened::Started(Owner::Object(object_id), sent) => {
                self.object_started(&object_id, sent);
            }
            Happened::Failed(Owner::Object(object_id), failure) => {
                self.object_failed(&object_id, failure);
            }
            Happened::Ended(Owner::Object(object_id), end) => self.object_ended(&object_id, end),
            Happened::Started(Owner::Service(name), _) => self.service_started(&name),
            Happened::Failed(Owner::Service(name), failure) => self.service_failed(&name, failure),
            Happened::Ended(Owner::Service(name), end) => self.service_ended(&name, end),
        }
    }

    /// Send what waits and read some packets; the loop comes back for more.
    fn handle_connection(&mut self, number: u32) {
        self.connections.flush(number, &self.poll);
        for _ in 0..PACKETS {
            if !self.take_one(number) {
                return;
            }
        }
    }

    /// Whether there may be another packet.
    fn take_one(&mut self, number: u32) -> bool {
        if !self.connections.may_read(number) {
            return false;
        }
        let Some(connection) = self.connections.open.get(&number) else {
            return false;
        };
        let incoming = packet::receive(connection.socket.as_fd(), &mut self.buffer);
        let taken = match incoming {
            Incoming::Nothing => return false,
            Incoming::Packet(bytes, fds) => self.take_packet(number, &bytes, fds),
            Incoming::Closed => {
                self.connections.close(number, &self.poll);
                Ok(())
            }
            Incoming::Broken(reason) => Err(reason.to_owned()),
        };
        if let Err(reason) = taken {
            note::event("connection_closed", serde_json::json!({"reason": reason}));
            self.connections.close(number, &self.poll);
            return false;
        }
        true
    }
}
