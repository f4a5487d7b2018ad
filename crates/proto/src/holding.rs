//! `runtime.sock`: pausing sandboxes, the leases of jobs, and disks that are kept after an end.

use serde::{Deserialize, Serialize};

/// Parameters of `sandbox.freeze`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxFreeze {
    /// The sandbox.
    pub sandbox_id: String,
    /// `paused`, or why else.
    pub cause: String,
}

/// Answer to `sandbox.freeze`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Whether it still is: what enters a sandbox resumes it.
    pub paused: bool,
    /// Whether every process stood still within the bound; those that did not do so as soon as they can.
    pub whole: bool,
    /// How long it took, or how long was waited.
    pub waited_ns: u64,
}

/// Answer to `sandbox.thaw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thawed {
    /// Whether it was paused.
    pub resumed: bool,
}

/// What a job that is lost does to its sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// They end, cause `lease`.
    Stop,
    /// They are paused.
    Pause,
}

/// Parameters of `job.lease`: from now on, for so long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobLease {
    /// Its name.
    pub job: String,
    /// A smaller number than the one that is known is refused.
    pub fence: u64,
    /// Length.
    pub lease_ms: u64,
    /// What then.
    pub on_lost: OnLost,
}

/// Parameters of `job.end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneJob {
    /// Its name.
    pub job: String,
}

/// The disk of a sandbox that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptDisk {
    /// Whose it was.
    pub sandbox_id: String,
    /// Unix time, seconds; it is removed then.
    pub kept_until: f64,
    /// What it takes.
    pub bytes: u64,
}

/// Answer to `disk.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskList {
    /// All that are kept.
    pub disks: Vec<KeptDisk>,
}
