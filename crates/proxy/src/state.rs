//! What the proxy has been told: sandboxes, their exposed ports, their endpoints.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_proto::egress::EgressTable;
use dsec_proto::net::{EndpointSpec, PortSpec};
use dsec_proto::proxy::ToRuntime;
use tokio::sync::Notify;

use crate::cut::Cut;
use crate::egress::sandbox::Outward;
use crate::endpoint::{self, Endpoint};
use crate::limits::Counters;
use crate::link::Link;

/// Descriptors of a network: two listeners, two sockets of the resolver, the journal.
const EGRESS_FDS: usize = 5;

/// All of it. One thread owns it; tasks share it by `Rc`.
#[derive(Default)]
pub struct State {
    sandboxes: RefCell<HashMap<String, Rc<Known>>>,
    /// To the runtime, while it lives.
    pub link: RefCell<Option<Rc<Link>>>,
    /// Told when there is a link.
    pub linked: Notify,
    /// Whether everything was told: what is not known here is not exposed then.
    pub whole: Cell<bool>,
    /// Told when it is.
    pub completed: Notify,
    changed: RefCell<HashSet<String>>,
    stirred: Notify,
    /// Descriptors of the connections and questions of now.
    pub descriptors: Cell<u64>,
    /// Descriptors of sandboxes' listeners, sockets, ledgers and journals.
    held: Cell<u64>,
    /// Below which the exposed ports' hosts are.
    pub ports_domain: RefCell<Rc<str>>,
    /// The node's resolvers, as its operator names them.
    pub resolvers: RefCell<Rc<Vec<SocketAddr>>>,
}

/// A sandbox.
pub struct Known {
    /// Its ID.
    pub id: String,
    ports: RefCell<HashMap<u16, Rc<Port>>>,
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    outward: RefCell<Option<Rc<Outward>>>,
    inbound: Cell<u32>,
    /// Descriptors that it has here.
    held: Cell<u64>,
}

/// An exposed port.
pub struct Port {
    /// Its number inside.
    pub port: u16,
    /// What a request must bring.
    pub token: String,
    /// When it is exposed no more.
    pub cut: Cut,
}

impl State {
    /// A sandbox that was told of.
    #[must_use]
    pub fn find(&self, sandbox_id: &str) -> Option<Rc<Known>> {
        self.sandboxes.borrow().get(sandbox_id).cloned()
    }

    /// Everything about one sandbox, in place of what was told before. What is missing now is cut.
    ///
    /// # Errors
    /// What has not begun, for want of its descriptors. All the rest is in force.
    pub fn set(
        self: &Rc<Self>,
        sandbox_id: &str,
        ports: Vec<PortSpec>,
        endpoints: Vec<EndpointSpec>,
        egress: Option<EgressTable>,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let of_egress = if egress.is_some() { EGRESS_FDS } else { 0 };
        let outward = fds.split_off(fds.len().saturating_sub(of_egress));
        let ledger = (fds.len() > endpoints.len())
            .then(|| fds.pop().map(|fd| Rc::new(File::from(fd))))
            .flatten();
        let known = self.sandboxes.borrow().get(sandbox_id).cloned();
        let known = known.unwrap_or_else(|| {
            let new = Rc::new(Known {
                id: sandbox_id.to_owned(),
                ports: RefCell::default(),
                endpoints: RefCell::default(),
                outward: RefCell::default(),
                inbound: Cell::new(0),
                held: Cell::new(0),
            });
            self.sandboxes
                .borrow_mut()
                .insert(sandbox_id.to_owned(), Rc::clone(&new));
            new
        });
        known.set_ports(ports);
        let mut begun = egress.map_or(Ok(()), |table| known.set_egress(self, table, outward));
        let mut listeners = fds.into_iter();
        for (index, spec) in endpoints.into_iter().enumerate() {
            let present = known.endpoints.borrow().get(index).cloned();
            let endpoint = match (present, listeners.next()) {
                (Some(endpoint), _) => endpoint,
                (None, None) => {
                    begun = Err("its endpoints came without their listeners".into());
                    break;
                }
                (None, Some(listener)) => {
                    let counters = match &ledger {
                        Some(ledger) => Counters::in_ledger(Rc::clone(ledger), index),
                        None => Counters::default(),
                    };
                    let endpoint = Endpoint::new(sandbox_id, spec.clone(), counters);
                    known.endpoints.borrow_mut().push(Rc::clone(&endpoint));
                    endpoint::serve(self, &endpoint, listener);
                    endpoint
                }
            };
            endpoint.change(spec);
        }
        self.hold(&known, known.descriptors());
        begun
    }

    /// Descriptors of the sandboxes themselves.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    fn hold(&self, known: &Known, descriptors: u64) {
        let before = known.held.replace(descriptors);
        self.held.set(self.held.get() - before + descriptors);
    }

    /// A sandbox is over.
    pub fn forget(&self, sandbox_id: &str) {
        let known = self.sandboxes.borrow_mut().remove(sandbox_id);
        if let Some(known) = known {
            known.set_ports(Vec::new());
            self.hold(&known, 0);
            for endpoint in known.endpoints.borrow().iter() {
                endpoint.end();
            }
            if let Some(outward) = known.outward.take() {
                outward.end();
            }
        }
        self.changed.borrow_mut().remove(sandbox_id);
    }

    /// What there is, of every sandbox.
    #[must_use]
    pub fn all(&self) -> Vec<ToRuntime> {
        self.sandboxes
            .borrow()
            .values()
            .map(|known| known.have())
            .collect()
    }

    /// Something about a sandbox is to be reported, a moment later together with what else happens.
    pub fn stir(&self, sandbox_id: &str) {
        if self.changed.borrow_mut().insert(sandbox_id.to_owned()) {
            self.stirred.notify_one();
        }
    }

    /// Waits for something to report.
    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// What is to be reported.
    #[must_use]
    pub fn take_changed(&self) -> Vec<ToRuntime> {
        let changed = std::mem::take(&mut *self.changed.borrow_mut());
        let sandboxes = self.sandboxes.borrow();
        let found = changed.iter().filter_map(|id| sandboxes.get(id));
        found.map(|known| known.have()).collect()
    }
}

impl Known {
    /// The port, if it is exposed.
    #[must_use]
    pub fn port(&self, port: u16) -> Option<Rc<Port>> {
        self.ports.borrow().get(&port).cloned()
    }

    /// Listeners and their ledger, and those of its network.
    fn descriptors(&self) -> u64 {
        let endpoints = self.endpoints.borrow().len();
        let outward = self.outward.borrow().as_ref().map_or(0, |_| EGRESS_FDS);
        (endpoints + usize::from(endpoints > 0) + outward) as u64
    }

    fn set_ports(&self, wanted: Vec<PortSpec>) {
        let mut ports = self.ports.borrow_mut();
        ports.retain(|number, port| {
            let stays = wanted
                .iter()
                .any(|spec| spec.port == *number && spec.token == port.token);
            if !stays {
                port.cut.cut();
            }
            stays
        });
        for spec in wanted {
            ports.entry(spec.port).or_insert_with(|| {
                Rc::new(Port {
                    port: spec.port,
                    token: spec.token,
                    cut: Cut::default(),
                })
            });
        }
    }

    fn set_egress(
        &self,
        state: &Rc<State>,
        table: EgressTable,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let present = self.outward.borrow().clone();
        match present {
            Some(outward) => outward.change(table),
            None => {
                let begun = Outward::begin(state, &self.id, table, fds);
                let outward = begun.map_err(|error| format!("a network cannot begin: {error}"))?;
                self.outward.replace(Some(outward));
            }
        }
        Ok(())
    }

    /// What there is of it.
    #[must_use]
    pub fn have(&self) -> ToRuntime {
        let connections = self
            .endpoints
            .borrow()
            .iter()
            .map(|endpoint| endpoint.counters.connections())
            .collect();
        ToRuntime::Have {
            sandbox_id: self.id.clone(),
            inbound: self.inbound.get(),
            connections,
        }
    }
}

/// A connection into a sandbox, counted while this lives.
pub struct Inbound(Rc<State>, Rc<Known>);

impl Inbound {
    /// One more.
    #[must_use]
    pub fn new(state: &Rc<State>, known: &Rc<Known>) -> Self {
        known.inbound.set(known.inbound.get() + 1);
        state.stir(&known.id);
        Self(Rc::clone(state), Rc::clone(known))
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.1.inbound.set(self.1.inbound.get() - 1);
        self.0.stir(&self.1.id);
    }
}
