//! Exposed ports and endpoints of a sandbox: what the edge asks of the runtime, and what both have counted.

use serde::{Deserialize, Serialize};

use crate::egress::{EgressCount, EgressTable};

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
    /// What it may reach. Without one nothing, of which a sandbox that had one has sockets all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressTable>,
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

/// Bytes of one endpoint in its sandbox's ledger: a file in memory that the proxy writes, the keeper holds and the runtime
/// reads, so that no death takes a count with it.
pub const LEDGER_BYTES: usize = 32;

impl EndpointCount {
    /// What has been counted, as it stands in the ledger. Open connections are not in it.
    #[must_use]
    pub fn to_ledger(&self) -> [u8; LEDGER_BYTES] {
        let mut bytes = [0; LEDGER_BYTES];
        let counts = [
            self.requests,
            self.refused,
            self.sent_bytes,
            self.received_bytes,
        ];
        for (place, count) in bytes.chunks_exact_mut(8).zip(counts) {
            place.copy_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    /// What the ledger says.
    #[must_use]
    pub fn from_ledger(bytes: &[u8; LEDGER_BYTES]) -> Self {
        let mut counts = bytes.chunks_exact(8).map(|place| {
            let place = place.try_into().unwrap_or_default();
            u64::from_le_bytes(place)
        });
        let mut next = || counts.next().unwrap_or_default();
        Self {
            requests: next(),
            refused: next(),
            sent_bytes: next(),
            received_bytes: next(),
            connections: 0,
        }
    }
}

/// Answer to `net.usage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetUsage {
    /// Connections to exposed ports that are open.
    pub inbound: u32,
    /// In the order of the endpoints.
    pub endpoints: Vec<EndpointCount>,
    /// Of its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressCount>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted is the same on the other side.
    #[test]
    fn ledger() {
        let count = EndpointCount {
            requests: 1,
            refused: 2,
            sent_bytes: 1 << 40,
            received_bytes: u64::MAX,
            connections: 0,
        };
        assert_eq!(EndpointCount::from_ledger(&count.to_ledger()), count);
    }
}
