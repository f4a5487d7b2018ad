//! Output that is kept after an exec's end.

use serde::{Deserialize, Serialize};

use crate::runtime::Offsets;

/// Parameters of `exec.output`: what an exec writes, on a connection that carries nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecOutput {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// Where to begin.
    #[serde(default)]
    pub offsets: Offsets,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}

/// Parameters of `output.tail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTail {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// At most so many per stream.
    pub bytes: u64,
}

/// Parameters of `output.read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputRead {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// Where to begin.
    #[serde(default)]
    pub offsets: Offsets,
    /// Where each channel ended.
    #[serde(default)]
    pub ends: Offsets,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}
