//! What a sandbox may reach: the compiled policy that the edge sends, and the journal of what came of it.

use serde::{Deserialize, Serialize};

/// Version of the compiled form. A table of another version is refused.
pub const TABLE_VERSION: u32 = 1;
/// Most rules of a table.
pub const MAX_RULES: usize = 256;
/// Most rules of what is routed, each port or range of ports counted as one.
pub const MAX_ROUTED: usize = 128;
/// Most ranges of either list.
pub const MAX_RANGES: usize = 128;

/// A compiled policy, as `dsec.network` makes it: flat, in order, with nothing left to look up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressTable {
    /// [`TABLE_VERSION`].
    pub version: u32,
    /// Whether what no rule names may pass.
    pub allow: bool,
    /// The first that matches decides.
    pub rules: Vec<EgressRule>,
    /// Ranges that nothing reaches, whatever the rules say.
    pub closed: Vec<String>,
    /// The operator's exceptions from these, and from the node's own addresses.
    pub opened: Vec<String>,
    /// Whether a TLS hello whose name is encrypted may pass as the name that it shows.
    pub ech: bool,
    /// Most connections at a time.
    pub max_connections: u32,
    /// Most new connections in a minute.
    #[serde(default)]
    pub max_connections_per_minute: Option<u32>,
    /// Most bytes in all, both ways.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Most bytes in a second, both ways together.
    #[serde(default)]
    pub max_bytes_per_s: Option<u64>,
    /// What leaves by a link of the sandbox's own; the first that matches decides. Empty: it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routed: Vec<RoutedRule>,
}

impl EgressTable {
    /// The one that lets nothing pass.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            version: TABLE_VERSION,
            allow: false,
            rules: Vec::new(),
            closed: Vec::new(),
            opened: Vec::new(),
            ech: false,
            max_connections: 1,
            max_connections_per_minute: None,
            max_bytes: None,
            max_bytes_per_s: None,
            routed: Vec::new(),
        }
    }

    /// What the proxy is told of it.
    #[must_use]
    pub fn proxied(&self) -> Self {
        Self {
            routed: Vec::new(),
            ..self.clone()
        }
    }
}

/// One rule. What is empty matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRule {
    /// Whether what matches may pass.
    pub allow: bool,
    /// A name in lower case, or `*.` and a name for all below it.
    #[serde(default)]
    pub domain: Option<String>,
    /// An address range.
    #[serde(default)]
    pub range: Option<String>,
    /// Ports, first and last.
    #[serde(default)]
    pub ports: Vec<(u16, u16)>,
}

/// One rule for what is routed. What is empty matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutedRule {
    /// Whether what matches leaves by the link. Else it goes where it would go without one.
    pub allow: bool,
    /// Its number: 1 (echo requests alone), 6 or 17; 0 is any.
    #[serde(default)]
    pub protocol: u8,
    /// An address range of IPv4.
    #[serde(default)]
    pub range: Option<String>,
    /// Ports, first and last; of 6 and 17 only.
    #[serde(default)]
    pub ports: Vec<(u16, u16)>,
}

/// What the proxy has done for a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressCount {
    /// Connections that passed.
    pub connections: u64,
    /// Connections and requests that were refused or cut.
    pub refused: u64,
    /// Bytes that the sandbox sent.
    pub sent_bytes: u64,
    /// Bytes that came back.
    pub received_bytes: u64,
    /// Names that were answered.
    pub names: u64,
    /// Names that were refused.
    pub names_refused: u64,
}

/// Why something did not pass. The number stands in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Reason {
    /// No rule allows it, or one denies it.
    Policy = 1,
    /// The address is the node's own, private, or of another range that nothing reaches.
    ProtectedAddress = 2,
    /// The name that is asked for is not one that has this address.
    NamesDisagree = 3,
    /// A policy that knows names needs one, and the connection gives none.
    NoName = 4,
    /// The name in the TLS hello is encrypted.
    EncryptedHello = 5,
    /// HTTP/2 without TLS names no host that could be checked.
    Http2Cleartext = 6,
    /// Neither TLS nor HTTP where one of them must be.
    UnknownProtocol = 7,
    /// What was sent cannot be read, or can be read in two ways.
    Malformed = 8,
    /// The beginning took too long.
    Slow = 9,
    /// Only addresses can be asked for.
    QueryType = 10,
    /// More connections at a time, or in a minute, than there may be.
    Connections = 11,
    /// The bytes are used up.
    Bytes = 12,
    /// The policy was changed.
    Changed = 13,
    /// The server does not answer.
    Unreachable = 14,
    /// The node's resolvers do not answer.
    NoResolver = 15,
}

impl Reason {
    /// From the journal.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        const ALL: [Reason; 15] = [
            Reason::Policy,
            Reason::ProtectedAddress,
            Reason::NamesDisagree,
            Reason::NoName,
            Reason::EncryptedHello,
            Reason::Http2Cleartext,
            Reason::UnknownProtocol,
            Reason::Malformed,
            Reason::Slow,
            Reason::QueryType,
            Reason::Connections,
            Reason::Bytes,
            Reason::Changed,
            Reason::Unreachable,
            Reason::NoResolver,
        ];
        ALL.into_iter().find(|reason| *reason as u8 == number)
    }
}

/// Something that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressEvent {
    /// Its number, from 0, without gaps.
    pub number: u64,
    /// Unix time, seconds.
    pub at: f64,
    /// `connection` or `name`.
    pub kind: String,
    /// Why.
    pub reason: Reason,
    /// The name that was asked for.
    pub name: Option<String>,
    /// The address that was dialled.
    pub address: Option<String>,
    /// The port that was dialled.
    pub port: Option<u16>,
}

/// Parameters of `net.events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsAsked {
    /// The sandbox.
    pub sandbox_id: String,
    /// The first number that is wanted.
    pub from: u64,
}

/// Answer to `net.events`, and what is left of it at a sandbox's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EgressRecord {
    /// What was counted.
    pub count: EgressCount,
    /// How many events there were in all: the next one's number.
    pub events: u64,
    /// The latest ones.
    pub latest: Vec<EgressEvent>,
}
