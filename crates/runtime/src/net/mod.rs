//! Ways into a sandbox and out of it: exposed ports and endpoints.
//!
//! The bytes are the proxy's ([`link`]). From here come the sockets, made in the sandbox's network namespace
//! ([`sockets`]), the links of the few that are routed ([`routed`]), and the word on what may be reached; the keeper holds
//! the namespace and the endpoints' listeners.

mod check;
pub mod egress;
mod ledger;
pub mod link;
mod place;
mod plan;
pub mod routed;
mod sockets;

pub use place::trial;

pub use check::{egress as check_egress, endpoints as check_endpoints, ports as check_ports};

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::egress::{EgressRecord, EgressTable};
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Call;
use dsec_proto::net::{EndpointCount, EndpointSpec, NetSet, NetUsage, PortSpec};
use dsec_proto::proxy::Refused;
use dsec_proto::runtime::{Empty, SandboxSpec};

use crate::kernel::netlink::Routed;
use crate::node::Node;
use crate::pause;
use crate::sandbox::{OpenStream, Sandbox};
use crate::tag::{endpoints_object, sandbox_object, Tag};
use link::Said;

/// How long a proxy may take to cut what is to be cut.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of one sandbox.
#[derive(Default)]
pub struct Net {
    /// Whether it was said what is exposed: not after a restart of the runtime, until the edge has said it again.
    told: bool,
    ports: Vec<PortSpec>,
    endpoints: Vec<EndpointSpec>,
    listeners: Vec<OwnedFd>,
    namespace: Option<Arc<OwnedFd>>,
    /// What the endpoints have done: the proxy writes it, the keeper holds it.
    ledger: Option<OwnedFd>,
    /// Open connections of each endpoint.
    connected: Vec<u32>,
    /// What they have done, once it is over.
    last: Vec<EndpointCount>,
    /// What it may reach.
    egress: Option<EgressTable>,
    /// The sockets in which its connections end, and the journal.
    outward: Vec<OwnedFd>,
    /// What this runtime has put in force for its link.
    routed: Option<Routed>,
    /// Whether this runtime has begun to make one.
    tried: bool,
    /// What its network has done, once it is over.
    last_egress: Option<EgressRecord>,
    inbound: u32,
    /// Keeps it from being idle while somebody is connected.
    busy: Option<OpenStream>,
}

impl Net {
    /// What the endpoints have done.
    fn done(&self) -> WireResult<Vec<EndpointCount>> {
        let mut counts = match &self.ledger {
            Some(ledger) => ledger::read(ledger, self.endpoints.len())
                .map_err(|error| WireError::node("endpoints", error.to_string()))?,
            None => self.last.clone(),
        };
        counts.resize_with(self.endpoints.len(), EndpointCount::default);
        for (count, connections) in counts.iter_mut().zip(&self.connected) {
            count.connections = *connections;
        }
        Ok(counts)
    }

    /// What the endpoints have done, as far as that is known here.
    #[must_use]
    pub fn counts(&self) -> Vec<EndpointCount> {
        if self.endpoints.is_empty() {
            return Vec::new();
        }
        self.done().unwrap_or_default()
    }

    /// Whether this runtime has given it a link.
    #[must_use]
    pub fn is_routed(&self) -> bool {
        self.routed.is_some()
    }

    /// A link is made with these rules, or is about to be made or changed.
    fn linked(&mut self, routed: Option<Routed>) {
        self.routed = routed;
        self.tried = true;
    }

    /// Of its endpoints, in their order.
    #[must_use]
    pub fn endpoint_names(&self) -> Vec<String> {
        let names = self.endpoints.iter().map(|endpoint| endpoint.name.clone());
        names.collect()
    }

    fn held(&self) -> i64 {
        (self.listeners.len() + usize::from(self.ledger.is_some()) + self.outward.len()) as i64
    }

    /// So many are connected.
    fn connections(&mut self, inbound: u32) {
        self.inbound = inbound;
        if inbound == 0 {
            self.busy = None;
        }
    }
}

/// Begins with these endpoints and this network, `made` already where a create makes it: from now on the sandbox can
/// connect to them. Harmless when it has begun with them.
///
/// # Errors
/// `node_error`.
pub async fn begin(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    spec: &SandboxSpec,
    made: Option<egress::Made>,
) -> WireResult<()> {
    have_listeners(node, sandbox, spec.endpoints.len()).await?;
    match made {
        Some(made) => egress::keep(node, sandbox, made).await?,
        None if spec.egress.is_some() => egress::have(node, sandbox).await?,
        None => {}
    }
    // What was said meanwhile is newer.
    if sandbox.net.borrow().told {
        return Ok(());
    }
    if spec
        .egress
        .as_ref()
        .is_some_and(|table| !table.routed.is_empty())
    {
        routed::apply(node, sandbox, spec.egress.as_ref()).await?;
    }
    let mut net = sandbox.net.borrow_mut();
    if net.told {
        return Ok(());
    }
    net.told = true;
    net.endpoints.clone_from(&spec.endpoints);
    net.egress.clone_from(&spec.egress);
    if !spec.endpoints.is_empty() || spec.egress.is_some() {
        node.proxy.say(Said::Set {
            turn: 0,
            sandbox_id: sandbox.id.clone(),
        });
    }
    Ok(())
}

/// `net.set`: what is exposed, and which endpoints answer. What is not any more is cut when this returns.
///
/// # Errors
/// What is wrong with it; `sandbox_gone`; `conflict`; `node_error` when the proxy does not answer.
pub async fn set(node: &Rc<Node>, asked: NetSet) -> WireResult<Empty> {
    check_ports(&asked.ports)?;
    check_endpoints(&asked.endpoints)?;
    asked.egress.as_ref().map_or(Ok(()), check_egress)?;
    let sandbox = node.live(&asked.sandbox_id)?;
    have_listeners(node, &sandbox, asked.endpoints.len()).await?;
    match &asked.egress {
        Some(_) => egress::have(node, &sandbox).await?,
        None => egress::take_up(node, &sandbox).await?,
    }
    routed::check(node, &sandbox, asked.egress.as_ref())?;
    // What the proxy holds is not kept waiting by an uplink that is not there.
    let link = match sandbox.tag.borrow().egress {
        true => Some(asked.egress.clone()),
        false => None,
    };
    {
        let mut net = sandbox.net.borrow_mut();
        if asked.endpoints.len() != net.listeners.len() {
            return Err(
                WireError::invalid("a sandbox keeps the endpoints that it was made with")
                    .with("field", "endpoints"),
            );
        }
        net.told = true;
        net.ports = asked.ports;
        net.endpoints = asked.endpoints;
        // The sockets of one that was made ready stay: nothing passes them.
        let ready = !net.outward.is_empty();
        net.egress = asked.egress.or_else(|| ready.then(EgressTable::nothing));
    }
    fault!("runtime.expose.noted");
    let told = node.proxy.apply(&sandbox.id, PATIENCE).await;
    if let Some(egress) = link {
        routed::apply(node, &sandbox, egress.as_ref()).await?;
    }
    told?;
    fault!("runtime.expose.applied");
    Ok(Empty {})
}

/// `net.prepare`: makes a sandbox ready for its first policy, so that a `net.set` with one will not be refused. Nothing
/// passes before that.
///
/// # Errors
/// `not_found`, `sandbox_gone`, `capacity`, `node_error`; `conflict` when a program of the sandbox is in the way.
pub async fn prepare(node: &Rc<Node>, sandbox_id: &str) -> WireResult<Empty> {
    let sandbox = node.live(sandbox_id)?;
    egress::have(node, &sandbox).await?;
    Ok(Empty {})
}

/// `net.usage`.
///
/// # Errors
/// `not_found`; `node_error` when the proxy does not answer.
pub async fn usage(node: &Node, sandbox_id: &str) -> WireResult<NetUsage> {
    let sandbox = node.sandbox(sandbox_id)?;
    // The proxy tells its counts when it is told anything.
    if sandbox.gone().is_none() && node.proxy.is_linked() {
        node.proxy.apply(sandbox_id, PATIENCE).await?;
    }
    let net = sandbox.net.borrow();
    Ok(NetUsage {
        inbound: net.inbound,
        endpoints: net.done()?,
        egress: egress::count(&net)?,
    })
}

/// `net.told`: everything was said since this runtime began, so that what was not is not exposed.
pub fn told(node: &Node) -> Empty {
    node.proxy.told_all();
    Empty {}
}

/// The sandbox is being ended: everything is cut and let go, but for the ledger. The keeper lets go with the sandbox.
pub fn over(node: &Node, sandbox: &Sandbox) {
    let net = sandbox.net.take();
    node.proxy
        .holds(-((net.listeners.len() + net.outward.len().saturating_sub(1)) as i64));
    if !net.ports.is_empty() || !net.endpoints.is_empty() || net.egress.is_some() || net.inbound > 0
    {
        node.proxy.say(Said::Drop {
            sandbox_id: sandbox.id.clone(),
        });
    }
    let mut last = sandbox.net.borrow_mut();
    last.endpoints = net.endpoints;
    last.ledger = net.ledger;
    // Of the sockets none stays, the journal is the last of them.
    last.outward = net.outward.into_iter().rev().take(1).collect();
}

/// What its endpoints have done in all, now that nothing of the sandbox lives any more.
pub async fn settle(node: &Node, sandbox: &Sandbox) -> Vec<EndpointCount> {
    let count = usize::from(sandbox.tag.borrow().endpoints);
    if count == 0 {
        return Vec::new();
    }
    let ours = sandbox.net.borrow_mut().ledger.take();
    node.proxy.holds(-i64::from(ours.is_some()));
    let ledger = match ours {
        Some(ledger) => Some(ledger),
        // A former runtime had it, and the keeper has it still.
        None => {
            let call = Call::Fetch {
                object_id: endpoints_object(&sandbox.id),
            };
            let fetched = node.keeper.call(call, &[]).await;
            fetched.ok().and_then(|(_, mut held)| held.pop())
        }
    };
    let read = ledger.map(|ledger| ledger::read(&ledger, count));
    let mut counts = match read {
        Some(Ok(counts)) => counts,
        Some(Err(error)) => {
            tracing::error!(sandbox_id = sandbox.id, "its ledger: {error}");
            Vec::new()
        }
        // It was ended before it had any.
        None => Vec::new(),
    };
    counts.resize_with(count, EndpointCount::default);
    sandbox.net.borrow_mut().last.clone_from(&counts);
    counts
}

/// Takes up the listeners of its endpoints from the keeper, where a former runtime left them, or makes them.
async fn have_listeners(node: &Node, sandbox: &Sandbox, count: usize) -> WireResult<()> {
    if count == 0 || !sandbox.net.borrow().listeners.is_empty() {
        return Ok(());
    }
    let call = Call::Fetch {
        object_id: endpoints_object(&sandbox.id),
    };
    let mut held = match node.keeper.call(call, &[]).await {
        Ok((_, held)) => held,
        Err(refusal) if refusal.code == "unknown_object" => {
            make_listeners(node, sandbox, count).await?
        }
        Err(refusal) => return Err(WireError::node("endpoints", refusal.message)),
    };
    let mut net = sandbox.net.borrow_mut();
    // Of one that was being ended meanwhile nothing is kept.
    if net.listeners.is_empty() && sandbox.gone().is_none() {
        net.ledger = held.pop();
        net.listeners = held;
        node.proxy.holds(net.held());
    }
    Ok(())
}

/// The listeners, and after them the ledger.
async fn make_listeners(node: &Node, sandbox: &Sandbox, count: usize) -> WireResult<Vec<OwnedFd>> {
    let namespace = namespace(node, sandbox).await?;
    let made = node
        .objects
        .run(move || sockets::listeners(&namespace, count as u8));
    let broken = |error: std::io::Error| WireError::node("endpoints", error.to_string());
    let mut held = made.await.map_err(broken)?;
    held.push(ledger::make(count).map_err(broken)?);
    let tag = Tag::Endpoints {
        sandbox_id: sandbox.id.clone(),
    };
    let put = Call::Put {
        object_id: endpoints_object(&sandbox.id),
        tag: tag
            .encode()
            .map_err(|error| WireError::node("tag", error))?,
        held: (0..held.len() as u16).collect(),
    };
    let numbers: Vec<_> = held.iter().map(AsRawFd::as_raw_fd).collect();
    fault!("runtime.endpoint.made");
    let kept = node.keeper.tell(put, &numbers).await;
    fault!("runtime.endpoint.held");
    kept.map_err(|refusal| WireError::node("endpoints", refusal.message))?;
    Ok(held)
}

/// A socket that is connected to an exposed port.
async fn connect(node: &Rc<Node>, sandbox_id: &str, port: u16) -> Result<OwnedFd, Refused> {
    let sandbox = node.live(sandbox_id).map_err(|_| Refused::Gone)?;
    let exposed = |net: &Net| net.ports.iter().any(|spec| spec.port == port);
    match &*sandbox.net.borrow() {
        net if exposed(net) => {}
        net if net.told => return Err(Refused::NotExposed),
        _ => return Err(Refused::NotYet),
    }
    let namespace = namespace(node, &sandbox).await.map_err(|_| Refused::Gone)?;
    pause::go_on(node, &sandbox, "connection").map_err(|_| Refused::Node)?;
    sandbox.touch();
    let made = node.objects.run(move || sockets::pair(&namespace));
    fault!("runtime.port.entered");
    let (four, six) = made.await.map_err(|error| {
        tracing::error!(sandbox_id, "a socket: {error}");
        Refused::Node
    })?;
    sockets::connect(four, six, port).await
}

/// Its network namespace, which the keeper holds with its init.
async fn namespace(node: &Node, sandbox: &Sandbox) -> WireResult<Arc<OwnedFd>> {
    if let Some(namespace) = &sandbox.net.borrow().namespace {
        return Ok(Arc::clone(namespace));
    }
    let call = Call::Fetch {
        object_id: sandbox_object(&sandbox.id),
    };
    let gone = || WireError::node("ports", "the keeper does not have its namespace");
    let fetched = node.keeper.call(call, &[]).await.map_err(|_| gone())?;
    let namespace = Arc::new(fetched.1.into_iter().next().ok_or_else(gone)?);
    // One that is being ended meanwhile keeps none.
    if sandbox.gone().is_none() {
        sandbox.net.borrow_mut().namespace = Some(Arc::clone(&namespace));
    }
    Ok(namespace)
}
