//! `runtime.sock`: snapshots of what a live sandbox has written.

use serde::{Deserialize, Serialize};

/// Parameters of `snapshot.make`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotMake {
    /// `sn-<node>-<26 base32>`; a known one is answered as it is.
    pub snapshot_id: String,
    /// Of whom.
    pub sandbox_id: String,
    /// How long it is kept.
    pub keep_ms: u64,
}

/// A snapshot; answer to `snapshot.make`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotState {
    /// Its ID.
    pub snapshot_id: String,
    /// Of whom.
    pub sandbox_id: String,
    /// Unix time, seconds.
    pub made_at: f64,
    /// Unix time, seconds; it is removed then.
    pub kept_until: f64,
    /// What the sandbox had written.
    pub bytes: u64,
    /// How long the sandbox stood still for it; 0 for one that was paused.
    pub frozen_ns: u64,
    /// Whether every process stood still meanwhile.
    pub whole: bool,
}

/// Answer to `snapshot.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotList {
    /// All that are kept, by ID.
    pub snapshots: Vec<SnapshotState>,
}

/// Parameters of `snapshot.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManySnapshots {
    /// Which.
    pub snapshot_ids: Vec<String>,
}
