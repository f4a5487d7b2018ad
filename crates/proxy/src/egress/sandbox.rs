//! The network of one sandbox: its policy of now, what was told it, what is open.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dsec_proto::egress::{EgressTable, Reason};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;

use super::journal::Journal;
use super::names::Names;
use super::policy::Policy;
use super::{connection, resolver};
use crate::cut::Cut;
use crate::limits::Rate;
use crate::serve::Counted;
use crate::state::State;

/// A sandbox's way out.
pub struct Outward {
    sandbox_id: String,
    policy: RefCell<Rc<Policy>>,
    /// What it was told about names.
    pub names: RefCell<Names>,
    /// What did not pass, and what was counted.
    pub journal: Journal,
    /// The node's resolvers; none named: the machine's.
    pub resolvers: Rc<Vec<SocketAddr>>,
    /// Questions that are being answered.
    pub questions: Cell<u32>,
    /// Pipes in which its bytes are.
    pub pipes: Rc<Cell<usize>>,
    /// When the sandbox is.
    pub over: Cut,
    live: RefCell<HashMap<u64, Rc<Live>>>,
    next: Cell<u64>,
    rate: RefCell<Option<Rate>>,
    /// When the bytes so far will have been due.
    due: Cell<Option<Instant>>,
    /// Told when that holds no more.
    freed: Notify,
}

/// A connection that is open.
pub struct Live {
    /// When it may be no longer.
    pub cut: Cut,
    /// What it was let pass as; nothing while that is being found out.
    passed_as: RefCell<Option<Passed>>,
}

/// What a connection was let pass as.
struct Passed {
    name: Option<String>,
    to: SocketAddr,
    /// Where it leads, if that is another of the name's addresses.
    instead: Option<SocketAddr>,
}

/// Keeps a connection in the list of those that are open.
pub struct Open {
    outward: Rc<Outward>,
    number: u64,
    /// What is known of it.
    pub live: Rc<Live>,
    _counted: Counted,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.outward.live.borrow_mut().remove(&self.number);
    }
}

impl Open {
    /// It passes as this. Where it leads stays known while it is the same name.
    pub fn passes(&self, name: Option<&str>, to: SocketAddr) {
        let mut present = self.live.passed_as.borrow_mut();
        let same = present
            .as_ref()
            .filter(|known| known.name.as_deref() == name);
        let instead = same.and_then(|known| known.instead);
        let name = name.map(str::to_owned);
        *present = Some(Passed { name, to, instead });
    }

    /// It leads to another of the name's addresses than the one that was dialled.
    ///
    /// # Errors
    /// Why it may not, as things are now.
    pub fn leads(&self, at: SocketAddr) -> Result<(), Reason> {
        let mut present = self.live.passed_as.borrow_mut();
        let Some(passed) = present.as_mut() else {
            return Err(Reason::Policy);
        };
        let policy = self.outward.policy();
        passed.instead = (at != passed.to).then_some(at);
        let fits = self.outward.fits(&policy, passed);
        fits.then_some(()).ok_or(Reason::Policy)
    }
}

impl Outward {
    /// One that begins to serve; the descriptors come in the order of the protocol.
    ///
    /// # Errors
    /// The errno.
    pub fn begin(
        state: &Rc<State>,
        sandbox_id: &str,
        table: EgressTable,
        fds: Vec<OwnedFd>,
    ) -> io::Result<Rc<Self>> {
        let fds: [OwnedFd; 5] = fds
            .try_into()
            .map_err(|_| io::Error::other("a network comes with five descriptors"))?;
        let [tcp4, tcp6, udp4, udp6, journal] = fds;
        let listeners = [listener(tcp4)?, listener(tcp6)?];
        let sockets = [datagrams(udp4)?, datagrams(udp6)?];
        let outward = Rc::new(Self {
            sandbox_id: sandbox_id.to_owned(),
            rate: RefCell::new(rate_of(&table)),
            policy: RefCell::new(Rc::new(Policy::new(table))),
            names: RefCell::default(),
            journal: Journal::new(File::from(journal)),
            resolvers: Rc::clone(&state.resolvers.borrow()),
            questions: Cell::new(0),
            pipes: Rc::default(),
            over: Cut::default(),
            live: RefCell::default(),
            next: Cell::new(0),
            due: Cell::new(None),
            freed: Notify::new(),
        });
        for listener in listeners {
            tokio::task::spawn_local(accept(Rc::clone(state), Rc::clone(&outward), listener));
        }
        for socket in sockets {
            let (state, outward) = (Rc::clone(state), Rc::clone(&outward));
            tokio::task::spawn_local(resolver::serve(state, outward, socket));
        }
        Ok(outward)
    }

    /// What is allowed now.
    #[must_use]
    pub fn policy(&self) -> Rc<Policy> {
        Rc::clone(&self.policy.borrow())
    }

    /// Takes over another table; connections that do not fit it are cut.
    pub fn change(&self, table: EgressTable) {
        if self.policy.borrow().table == table {
            return;
        }
        if self.policy.borrow().table.max_connections_per_minute != table.max_connections_per_minute
        {
            self.rate.replace(rate_of(&table));
        }
        if self.policy.borrow().table.max_bytes_per_s != table.max_bytes_per_s {
            self.due.set(None);
            self.freed.notify_waiters();
        }
        let policy = Rc::new(Policy::new(table));
        self.policy.replace(Rc::clone(&policy));
        for live in self.live.borrow().values() {
            let passed = live.passed_as.borrow();
            let Some(passed) = passed.as_ref() else {
                continue; // decided by the new one
            };
            if !self.fits(&policy, passed) {
                let to = Some((passed.to.ip(), passed.to.port()));
                let name = passed.name.as_deref();
                self.journal.refused(Reason::Changed, name, to);
                live.cut.cut();
            }
        }
    }

    fn fits(&self, policy: &Policy, passed: &Passed) -> bool {
        let name = passed.name.as_deref();
        let fits = |to: SocketAddr| {
            policy.decide(name, to.ip(), to.port()).allow
                && !name.is_some_and(|name| self.is_denied_on_the_way(policy, name, to.ip()))
        };
        fits(passed.to) && passed.instead.is_none_or(fits)
    }

    /// Whether a name has an address by way of a name that is denied, as far as is known.
    #[must_use]
    pub fn is_denied_on_the_way(&self, policy: &Policy, name: &str, address: IpAddr) -> bool {
        let way = self.names.borrow().way(name, address, Instant::now());
        way.is_some_and(|aliases| policy.denies_any(&aliases))
    }

    /// Waits until bytes may pass, or their rate is another one.
    pub async fn wait(&self, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.freed.notified() => {}
        }
    }

    /// The sandbox is over.
    pub fn end(&self) {
        self.over.cut();
        for live in self.live.borrow().values() {
            live.cut.cut();
        }
    }

    /// One more connection, if there may be.
    #[must_use]
    pub fn open(self: &Rc<Self>, counted: Counted) -> Option<Open> {
        let policy = self.policy();
        let most = policy.table.max_connections as usize;
        let rated = match (
            policy.table.max_connections_per_minute,
            &mut *self.rate.borrow_mut(),
        ) {
            (Some(most), Some(rate)) => rate.take(most, Instant::now()),
            _ => true,
        };
        if !rated || self.live.borrow().len() >= most {
            return None;
        }
        let number = self.next.replace(self.next.get() + 1);
        let live = Rc::new(Live {
            cut: Cut::default(),
            passed_as: RefCell::default(),
        });
        self.live.borrow_mut().insert(number, Rc::clone(&live));
        Some(Open {
            outward: Rc::clone(self),
            number,
            live,
            _counted: counted,
        })
    }

    /// Counts bytes that pass, and says how long to wait before the next ones. `None`: they are used up.
    #[must_use]
    pub fn pass(&self, sends: bool, bytes: u64) -> Option<Duration> {
        self.journal.count(|count| {
            if sends {
                count.sent_bytes += bytes;
            } else {
                count.received_bytes += bytes;
            }
        });
        let policy = self.policy();
        if policy
            .table
            .max_bytes
            .is_some_and(|most| self.journal.bytes() > most)
        {
            return None;
        }
        let Some(rate) = policy.table.max_bytes_per_s else {
            return Some(Duration::ZERO);
        };
        let now = Instant::now();
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let due = self.due.get().map_or(now, |due| due.max(now)) + takes;
        self.due.set(Some(due));
        Some(due - now)
    }

    /// Whether the bytes are used up.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        let most = self.policy().table.max_bytes;
        most.is_some_and(|most| self.journal.bytes() >= most)
    }
}

fn rate_of(table: &EgressTable) -> Option<Rate> {
    let most = table.max_connections_per_minute?;
    Some(Rate::new(most, Instant::now()))
}

fn listener(fd: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn datagrams(fd: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(fd);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

async fn accept(state: Rc<State>, outward: Rc<Outward>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = outward.over.wait() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (outward, counted) = (Rc::clone(&outward), Counted::new(&state, 2));
                tokio::task::spawn_local(connection::serve(outward, stream, counted));
            }
            Err(error) => {
                tracing::warn!(outward.sandbox_id, "accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The address that a connection was made to, before the namespace led it here.
#[must_use]
pub fn dialled(stream: &TcpStream) -> Option<SocketAddr> {
    let to: SocketAddr = match stream.local_addr().ok()? {
        SocketAddr::V4(_) => rustix::net::sockopt::ip_original_dst(stream).ok()?.into(),
        SocketAddr::V6(_) => rustix::net::sockopt::ipv6_original_dst(stream).ok()?.into(),
    };
    let address: IpAddr = to.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(to)
}
