//! Exposed ports and endpoints of a sandbox: what the edge asks of the runtime, and what both have counted.

use serde::{Deserialize, Serialize};

/// Most endpoints of a sandbox: their listeners travel in one packet.
pub const MAX_ENDPOINTS: usize = 16;
/// Most exposed ports of a sandbox.
pub const MAX_PORTS: usize = 64;

/// One way out, to a URL on the trusted side that is given in its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Reachable inside as `http://NAME.dsec.internal`, at 127.77.0.N for the Nth of the list.
    pub name: String,
    /// Whether the node speaks TLS to it.
    pub tls: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What every path begins with: empty, or `/…` without a slash at its end.
    pub path: String,
    /// Most connections at a time.
    pub max_connections: u32,
    /// Most bytes in all, both ways.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Most requests in a minute.
    #[serde(default)]
    pub max_requests_per_minute: Option<u32>,
    /// It answers no more.
    #[serde(default)]
    pub closed: bool,
}

/// One exposed port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// Port inside.
    pub port: u16,
    /// What a request must bring.
    pub token: String,
}

/// Parameters of `net.set`: all of it, in place of what was said before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetSet {
    /// The sandbox.
    pub sandbox_id: String,
    /// Ports that are exposed; connections to any other are cut.
    pub ports: Vec<PortSpec>,
    /// The endpoints that it was made with, in the same order.
    pub endpoints: Vec<EndpointSpec>,
}

/// What one endpoint has done since its sandbox was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCount {
    /// Requests that were passed on.
    pub requests: u64,
    /// Requests and connections that were refused.
    pub refused: u64,
    /// Bytes of bodies to the URL.
    pub sent_bytes: u64,
    /// Bytes of bodies back.
    pub received_bytes: u64,
    /// Connections that are open.
    pub connections: u32,
}

/// Answer to `net.usage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetUsage {
    /// Connections to exposed ports that are open.
    pub inbound: u32,
    /// In the order of the endpoints.
    pub endpoints: Vec<EndpointCount>,
}
