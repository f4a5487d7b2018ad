//! `runtime.sock`: parameters and results of its methods.
//!
//! Requests refuse unknown fields. A field that may be `nil` may be left out; the flow-control fields have
//! defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::loading::{LayerLoading, LoadingCounts};

pub use crate::exec::*;
pub use crate::files::*;
pub use crate::output::*;
pub use crate::sandbox::*;
pub use crate::tool::*;

/// Version of this protocol; `hello` refuses another.
pub const VERSION: u32 = 1;

/// Absolute offsets by channel.
pub type Offsets = BTreeMap<u8, u64>;

/// An answer without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// Parameters of `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelloParams {
    /// [`VERSION`].
    pub version: u32,
}

/// Answer to `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The machine's boot.
    pub boot_id: String,
    /// Name of the node.
    pub node: String,
    /// What this runtime can do, by name.
    pub capabilities: BTreeMap<String, bool>,
}

/// One probed kernel feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Whether the kernel has it.
    pub present: bool,
    /// What was seen.
    pub detail: String,
    /// What is lost without it.
    pub lost: String,
    /// How to get it.
    pub remedy: String,
}

/// Answer to `probe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// All that were probed.
    pub features: Vec<Feature>,
}

/// Parameters of `layer.evict`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEvict {
    /// Layers.
    pub digests: Vec<String>,
}

/// Answer to `layer.evict`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Those that are no longer mounted.
    pub evicted: Vec<String>,
}

/// Parameters of `layer.loading`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadingAsk {
    /// The layers with larger numbers than this.
    #[serde(default)]
    pub after: u32,
}

/// Answer to `layer.loading`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Whether this node reads layers on demand; all else is zero if not.
    pub on_demand: bool,
    /// Whether there is a fetcher.
    pub fetcher: bool,
    /// How long the read has waited that waits longest.
    pub oldest_wait_ms: u64,
    /// Of all layers, also those that are complete or closed by now.
    pub counts: LoadingCounts,
    /// At most 64 of those that are open and not complete, by number.
    pub layers: Vec<LayerLoading>,
    /// There are more after these.
    pub more: bool,
}

/// What happens without being asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum RuntimeEvent {
    /// A sandbox has ended.
    #[serde(rename = "sandbox.ended")]
    SandboxEnded {
        /// How.
        end: SandboxEnd,
    },
    /// An exec has ended.
    #[serde(rename = "exec.ended")]
    ExecEnded {
        /// Whose.
        sandbox_id: String,
        /// How.
        end: ExecEnd,
    },
    /// A sandbox was paused.
    #[serde(rename = "sandbox.paused")]
    SandboxPaused {
        /// Which.
        sandbox_id: String,
        /// Unix time, seconds.
        at: f64,
        /// `paused` or `lease`.
        cause: String,
        /// Whether every process stood still within the bound.
        whole: bool,
    },
    /// A paused sandbox runs again.
    #[serde(rename = "sandbox.resumed")]
    SandboxResumed {
        /// Which.
        sandbox_id: String,
        /// Unix time, seconds.
        at: f64,
        /// `resumed`, or what entered it: `exec`, `file`, `stopped`.
        cause: String,
    },
    /// The lease of a job is over.
    #[serde(rename = "job.lost")]
    JobLost {
        /// Its name.
        job: String,
        /// Of the holder that did not renew it.
        fence: u64,
        /// Unix time, seconds.
        at: f64,
    },
    /// A disk is kept no more.
    #[serde(rename = "disk.removed")]
    DiskRemoved {
        /// Whose it was.
        sandbox_id: String,
    },
    /// A snapshot is kept no more.
    #[serde(rename = "snapshot.removed")]
    SnapshotRemoved {
        /// Which.
        snapshot_id: String,
    },
}

/// Answer to `stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Live.
    pub sandboxes: u64,
    /// Running.
    pub execs: u64,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Used of it.
    pub pool_used_bytes: u64,
    /// Measured bytes of removed sandboxes whose space is not yet back.
    pub pool_pending_bytes: u64,
    /// Prepared.
    pub slots_ready: u64,
    /// Taken, ended ones that are not yet forgotten included.
    pub slots_used: u64,
    /// The larger of the runtime's own and what the keeper holds.
    pub descriptors_used: u64,
    /// RLIMIT_NOFILE.
    pub descriptors_limit: u64,
    /// Events of sandboxes since the runtime began, by kind and reason, `limit memory`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub audit: BTreeMap<String, u64>,
}
