//! Between the runtime and `dsec-proxy`: one msgpack packet each on a SOCK_SEQPACKET, descriptors by SCM_RIGHTS.
//!
//! The runtime connects to `proxy.sock` and sends one end of a socket pair with a single byte; everything else is said
//! on that pair. Neither side waits for the other: after a break the runtime says everything again.

use serde::{Deserialize, Serialize};

use crate::egress::EgressTable;
use crate::net::{EndpointSpec, PortSpec};

/// Version of this protocol.
pub const VERSION: u32 = 4;

/// Runtime to proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToProxy {
    /// First packet.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// All about one sandbox. Comes with the listener of each endpoint, in their order, and after them the ledger
    /// (`EndpointCount::to_ledger`), if there is any endpoint. With a table come five more: the TCP listeners of both
    /// families, the UDP sockets of the resolver, and the journal.
    Set {
        /// Repeated in [`ToRuntime::Applied`].
        turn: u64,
        /// The sandbox.
        sandbox_id: String,
        /// Exposed ports.
        ports: Vec<PortSpec>,
        /// Endpoints.
        endpoints: Vec<EndpointSpec>,
        /// What it may reach.
        egress: Option<Box<EgressTable>>,
    },
    /// That is everything: what was not said is not exposed. Comes once the edge has told the runtime.
    All,
    /// The sandbox is over: cut everything.
    Drop {
        /// The sandbox.
        sandbox_id: String,
    },
    /// Answer to [`ToRuntime::Connect`]; comes with the connected socket when `refused` is `None`.
    Connected {
        /// The request's.
        id: u64,
        /// Why there is none.
        refused: Option<Refused>,
    },
}

/// Why there is no connection to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// The runtime has just begun and has not been told yet what is exposed: ask again.
    NotYet,
    /// The sandbox has ended, or never was.
    Gone,
    /// The port is not exposed.
    NotExposed,
    /// Nothing listens there.
    Nobody,
    /// The connection was not accepted in time.
    Late,
    /// The node failed.
    Node,
}

/// Proxy to runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToRuntime {
    /// Answer to [`ToProxy::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// A [`ToProxy::Set`] is in force: what it took away is cut. Comes after a `Have` of the sandbox.
    Applied {
        /// Of the `Set`.
        turn: u64,
    },
    /// A [`ToProxy::Set`] is not in force, or not as a whole.
    NotApplied {
        /// Of the `Set`.
        turn: u64,
        /// The sandbox.
        sandbox_id: String,
        /// A sentence.
        why: String,
    },
    /// What there is of a sandbox: said of each after `Hello`, and when it changes.
    Have {
        /// The sandbox.
        sandbox_id: String,
        /// Open connections to its ports.
        inbound: u32,
        /// Open connections of each endpoint.
        connections: Vec<u32>,
    },
    /// Connect to a port.
    Connect {
        /// Chosen by the proxy.
        id: u64,
        /// The sandbox.
        sandbox_id: String,
        /// Port inside.
        port: u16,
    },
}
