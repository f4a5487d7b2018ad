//! `runtime.sock`: sessions, whose `session.open` takes what `exec.start` takes.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::runtime::ExecUsage;

/// Parameters of `session.run`. The same `run_id` is the same run, however often it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRun {
    /// The sandbox.
    pub sandbox_id: String,
    /// The session: the ID of its exec.
    pub session_id: String,
    /// 26 base32 characters.
    pub run_id: String,
    /// The script, unless it follows on channel 0.
    pub script: Option<ByteBuf>,
    /// So many bytes of script follow on channel 0.
    pub length: Option<u64>,
    /// Interrupted after so long, from its beginning.
    pub timeout_ms: Option<u64>,
    /// Between SIGTERM and the kill.
    pub grace_ms: u64,
    /// Per stream, at most 64 MiB.
    pub max_output_bytes: u64,
    /// While it runs, standard error is the descriptor of standard output.
    #[serde(default)]
    pub merge_stderr: bool,
}

/// Parameters of `session.cancel`, confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionCancel {
    /// The sandbox.
    pub sandbox_id: String,
    /// The session.
    pub session_id: String,
    /// The run; one that is not known is remembered, and will not be run.
    pub run_id: String,
    /// Between SIGTERM and the kill.
    pub grace_ms: u64,
}

/// Parameters of `session.close`, confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionClose {
    /// The sandbox.
    pub sandbox_id: String,
    /// The session.
    pub session_id: String,
    /// How long the shell may take to exit by itself.
    pub grace_ms: u64,
}

/// How a run ended. Its output are the bytes from `*_from` on, so many as `*_total` says, of the session's streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Its ID.
    pub run_id: String,
    /// `exited`, `signalled`, `timeout`, `cancelled`.
    pub ended: String,
    /// Status of the script, when it came to its end.
    pub exit_code: Option<i32>,
    /// When a signal ended the shell.
    pub signal: Option<i32>,
    /// Since the run before ended.
    pub oom_kills: u64,
    /// `disk`, `pids`.
    pub quota_hits: Vec<String>,
    /// Offset in the session's stream.
    pub stdout_from: u64,
    /// Bytes of this run.
    pub stdout_total: u64,
    /// Offset in the session's stream.
    pub stderr_from: u64,
    /// Bytes of this run.
    pub stderr_total: u64,
    /// Unix time, seconds.
    pub started_at: f64,
    /// From its beginning to its status.
    pub duration_ns: u64,
    /// CPU time since the run before ended; the peak is the session's.
    pub usage: ExecUsage,
    /// The shell has ended with it.
    pub closed: bool,
    /// Its standard error went to the session's standard output.
    #[serde(default)]
    pub merged: bool,
}

/// Answer to `session.runs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// All runs of a sandbox's sessions that have ended.
    pub runs: Vec<RunEnd>,
}
