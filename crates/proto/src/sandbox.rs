//! Sandboxes: what they are made of, their use and their end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::audit::AuditRecord;
use crate::egress::{EgressRecord, EgressTable};
use crate::exec::ExecSpec;
use crate::net::{EndpointCount, EndpointSpec};

/// What a sandbox is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// `sb-<node>-<26 base32>`.
    pub sandbox_id: String,
    /// Digests, bottom first.
    pub layers: Vec<String>,
    /// Limit.
    pub memory_bytes: u64,
    /// Limit, thousandths of a CPU.
    pub cpu_milli: u64,
    /// Limit of processes and threads.
    pub pids: u64,
    /// Limit of what is written.
    pub disk_bytes: u64,
    /// Size of /dev/shm.
    pub shm_bytes: u64,
    /// Host name inside.
    pub hostname: String,
    /// `default`, `strict` or `nested`.
    pub profile: String,
    /// Ends after so long without activity; 0 never.
    pub idle_timeout_ms: u64,
    /// Ends after so long.
    pub lifetime_ms: u64,
    /// A process whose end is the sandbox's end.
    pub main: Option<ExecSpec>,
    /// The job that it belongs to, which has a lease.
    #[serde(default)]
    pub job: Option<String>,
    /// It begins with a copy of what the sandbox of this ID had written, whose disk is kept.
    #[serde(default)]
    pub from_disk: Option<String>,
    /// It begins with a copy of this snapshot.
    #[serde(default)]
    pub from_snapshot: Option<String>,
    /// Ways out.
    #[serde(default)]
    pub endpoints: Vec<EndpointSpec>,
    /// What it may reach; without one it has no network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressTable>,
    /// Paths that nobody inside can change, move away or cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
}

/// Answer to `sandbox.create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxStarted {
    /// Its ID.
    pub sandbox_id: String,
    /// Unix time, seconds.
    pub started_at: f64,
    /// Number of the slot it occupies.
    pub slot: u32,
    /// It was there before.
    pub existing: bool,
    /// Microseconds by phase.
    pub phases: BTreeMap<String, u64>,
}

/// Parameters of `sandbox.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxStop {
    /// The sandbox.
    pub sandbox_id: String,
    /// `stopped`, `lease`, …
    pub cause: String,
    /// Who asked.
    pub actor: String,
    /// Time between SIGTERM to the main process and the kill.
    pub grace_ms: u64,
    /// Keep its disk for so long.
    #[serde(default)]
    pub keep_ms: Option<u64>,
}

/// Parameters that name one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneSandbox {
    /// The sandbox.
    pub sandbox_id: String,
}

/// Parameters that name sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManySandboxes {
    /// The sandboxes.
    pub sandbox_ids: Vec<String>,
}

/// Use of resources; `nil` where not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time.
    pub cpu_ns: u64,
    /// Memory charged now.
    pub memory_bytes: u64,
    /// The most that was charged.
    pub memory_peak_bytes: u64,
    /// Space in the pool.
    pub disk_bytes: Option<u64>,
    /// Processes and threads now.
    pub pids: u64,
    /// The most there were.
    pub pids_peak: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
    /// Read from block devices.
    pub read_bytes: Option<u64>,
    /// Written to block devices.
    pub written_bytes: Option<u64>,
    /// Memory times time, by samples.
    pub memory_byte_s: u64,
}

/// That nothing of a sandbox runs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Processes left: 0.
    pub processes: u64,
    /// From the kill to the empty group.
    pub waited_ns: u64,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxEnd {
    /// Its ID.
    pub sandbox_id: String,
    /// `stopped idle lifetime lease main-exited init-died lost`.
    pub cause: String,
    /// Unix time, seconds.
    pub ended_at: f64,
    /// Of the main process, when it exited.
    pub exit_code: Option<i32>,
    /// All that it used.
    pub usage: Usage,
    /// That it is empty.
    pub proof: Proof,
    /// Unix time, seconds, when its disk is kept.
    pub kept_until: Option<f64>,
    /// What its endpoints had done, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointCount>,
    /// What its network had done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRecord>,
    /// What else it had tried and not got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditRecord>,
}

/// A sandbox as the runtime sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxState {
    /// Its ID.
    pub sandbox_id: String,
    /// `running` or `ended`.
    pub state: String,
    /// Unix time, seconds.
    pub started_at: f64,
    /// Unix time, seconds.
    pub last_activity_at: f64,
    /// Execs that have not ended.
    pub execs_running: u64,
    /// Whether it stands still.
    pub paused: bool,
    /// Once it has ended.
    pub end: Option<SandboxEnd>,
}

/// Answer to `sandbox.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxList {
    /// Live ones, and ended ones not yet forgotten.
    pub sandboxes: Vec<SandboxState>,
}
