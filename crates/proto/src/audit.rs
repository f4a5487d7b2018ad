//! What a sandbox tried and did not get, beside its network's own journal: limits that it met, calls that were refused.

use serde::{Deserialize, Serialize};

/// Events that are kept of a live sandbox.
pub const KEPT: u64 = 256;
/// Events that the record of an ended sandbox keeps.
pub const LAST: u64 = 64;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// A limit was met: `memory pids disk output time`.
    Limit,
    /// A system call of note was refused.
    Syscall,
    /// An endpoint refused requests or connections.
    Endpoint,
    /// Packets that would be routed were dropped.
    Packet,
}

impl AuditKind {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AuditKind::Limit => "limit",
            AuditKind::Syscall => "syscall",
            AuditKind::Endpoint => "endpoint",
            AuditKind::Packet => "packet",
        }
    }
}

/// Something that happened, once or many times in short order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Its number, from 0, without gaps.
    pub number: u64,
    /// Unix time of the last of them, seconds.
    pub at: f64,
    /// What it is about.
    pub kind: AuditKind,
    /// Why.
    pub reason: String,
    /// What it was done to or with: a call, a stream, an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The exec or run, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<String>,
    /// How often.
    pub count: u64,
}

/// Parameters of `audit.events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditAsked {
    /// The sandbox.
    pub sandbox_id: String,
    /// The first number that is wanted.
    pub from: u64,
}

/// Answer to `audit.events`, and what is left of it at a sandbox's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// How many events there were in all: the next one's number.
    pub events: u64,
    /// The latest ones.
    pub latest: Vec<AuditEvent>,
}
