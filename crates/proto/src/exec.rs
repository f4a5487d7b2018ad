//! Execs: what they are, how they are followed and how they ended.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::runtime::Offsets;

/// What an exec is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// 26 base32 characters.
    pub exec_id: String,
    /// The sandbox.
    pub sandbox_id: String,
    /// Arguments, argv[0] included.
    pub argv: Vec<ByteBuf>,
    /// Tried in order instead of argv[0].
    pub programs: Option<Vec<ByteBuf>>,
    /// `K=V` each.
    pub env: Vec<ByteBuf>,
    /// Absolute path.
    pub cwd: Option<ByteBuf>,
    /// Make cwd when it is missing.
    pub create_cwd: bool,
    /// `name`, `uid`, `name:group`, `uid:gid`; empty is root.
    pub user: String,
    /// Ended after so long.
    pub timeout_ms: Option<u64>,
    /// Between SIGTERM and the kill.
    pub grace_ms: u64,
    /// Whether there is a standard input.
    pub stdin: bool,
    /// Whether a slow reader stops the program.
    pub backpressure: bool,
    /// Per stream, at most 64 MiB.
    pub max_output_bytes: u64,
    /// Its end is the sandbox's end.
    pub is_main: bool,
    /// Both outputs are one pipe, channel 1.
    #[serde(default)]
    pub merge_stderr: bool,
    /// All three standard descriptors are a new terminal; its output is channel 1.
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// Given as descriptor 9, a sealed file to be read: a script that is too long for an argument.
    #[serde(default)]
    pub script: Option<ByteBuf>,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// Parameters of `exec.start`: an [`ExecSpec`], and how its output is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecStart {
    /// See [`ExecSpec`].
    pub exec_id: String,
    /// See [`ExecSpec`].
    pub sandbox_id: String,
    /// See [`ExecSpec`].
    pub argv: Vec<ByteBuf>,
    /// See [`ExecSpec`].
    pub programs: Option<Vec<ByteBuf>>,
    /// See [`ExecSpec`].
    pub env: Vec<ByteBuf>,
    /// See [`ExecSpec`].
    pub cwd: Option<ByteBuf>,
    /// See [`ExecSpec`].
    pub create_cwd: bool,
    /// See [`ExecSpec`].
    pub user: String,
    /// See [`ExecSpec`].
    pub timeout_ms: Option<u64>,
    /// See [`ExecSpec`].
    pub grace_ms: u64,
    /// See [`ExecSpec`].
    pub stdin: bool,
    /// See [`ExecSpec`].
    pub backpressure: bool,
    /// See [`ExecSpec`].
    pub max_output_bytes: u64,
    /// See [`ExecSpec`].
    pub is_main: bool,
    /// See [`ExecSpec`].
    #[serde(default)]
    pub merge_stderr: bool,
    /// See [`ExecSpec`].
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// See [`ExecSpec`].
    #[serde(default)]
    pub script: Option<ByteBuf>,
    /// How the output comes.
    pub mode: Mode,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
}

impl ExecStart {
    /// Parts the request from how its output is wanted.
    #[must_use]
    pub fn into_spec(self) -> (ExecSpec, Mode, Offsets) {
        let spec = ExecSpec {
            exec_id: self.exec_id,
            sandbox_id: self.sandbox_id,
            argv: self.argv,
            programs: self.programs,
            env: self.env,
            cwd: self.cwd,
            create_cwd: self.create_cwd,
            user: self.user,
            timeout_ms: self.timeout_ms,
            grace_ms: self.grace_ms,
            stdin: self.stdin,
            backpressure: self.backpressure,
            max_output_bytes: self.max_output_bytes,
            is_main: self.is_main,
            merge_stderr: self.merge_stderr,
            pty: self.pty,
            script: self.script,
        };
        (spec, self.mode, self.credit)
    }
}

/// How output is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// After the end: head and tail.
    Collect,
    /// Live, as credit allows.
    Stream,
    /// Not at all.
    Detach,
}

/// First item of an exec's stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Unix time, seconds.
    pub started_at: f64,
}

/// Bytes that are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Channel.
    pub gap: u8,
    /// First missing byte.
    pub from: u64,
    /// First byte after it.
    pub to: u64,
}

/// Parameters of `exec.attach`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecAttach {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// How the output comes.
    pub mode: Mode,
    /// Where to begin.
    #[serde(default)]
    pub offsets: Offsets,
    /// First credit.
    #[serde(default)]
    pub credit: Offsets,
    /// For `collect`; the exec's own when `nil`.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
    /// What the edge has recorded: a runtime that began after the exec was acknowledged knows only its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ExecEnd>,
    /// Whose standard input comes on this stream: each writer counts its own bytes. 0 is who started it.
    #[serde(default)]
    pub writer: u64,
}

/// Parameters of `exec.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecResize {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// The new size.
    pub size: PtySize,
}

/// Parameters of `exec.kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecKill {
    /// The sandbox.
    pub sandbox_id: String,
    /// The exec.
    pub exec_id: String,
    /// Only this signal to the leader's group.
    pub signal: Option<i32>,
    /// Between SIGTERM and the kill.
    pub grace_ms: u64,
    /// `cancelled`.
    pub cause: String,
}

/// Parameters of `exec.ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecAck {
    /// Execs whose results are committed.
    pub exec_ids: Vec<String>,
}

/// Use of one exec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecUsage {
    /// CPU time.
    pub cpu_ns: u64,
    /// The most memory that was charged.
    pub memory_peak_bytes: u64,
}

/// How an exec ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// Its ID.
    pub exec_id: String,
    /// `exited`, `signalled`, `timeout`, `cancelled`.
    pub ended: String,
    /// When it exited.
    pub exit_code: Option<i32>,
    /// When a signal ended it.
    pub signal: Option<i32>,
    /// Of its own group.
    pub oom_kills: u64,
    /// `disk`, `pids`.
    pub quota_hits: Vec<String>,
    /// Bytes that it wrote.
    pub stdout_total: u64,
    /// Bytes that it wrote.
    pub stderr_total: u64,
    /// Unix time, seconds.
    pub started_at: f64,
    /// From the clone to the wait.
    pub duration_ns: u64,
    /// What it used.
    pub usage: ExecUsage,
    /// Channel 1 is both outputs in the order they were written.
    #[serde(default)]
    pub merged: bool,
}

/// An exec as the runtime sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecState {
    /// Its ID.
    pub exec_id: String,
    /// `running` or `ended`.
    pub state: String,
    /// Its first 2 KiB.
    pub argv: Vec<ByteBuf>,
    /// Unix time, seconds.
    pub started_at: f64,
    /// Bytes so far.
    pub stdout_total: u64,
    /// Bytes so far.
    pub stderr_total: u64,
    /// Once it has ended.
    pub end: Option<ExecEnd>,
}

/// Answer to `exec.list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecList {
    /// All that are not forgotten.
    pub execs: Vec<ExecState>,
}
