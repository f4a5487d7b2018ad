//! `runtime.sock`: parameters and results of its methods.
//!
//! Requests refuse unknown fields. A field that may be `nil` may be left out; the flow-control fields have
//! defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

pub use crate::files::*;
use crate::net::EndpointSpec;

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
    /// `default` or `strict`.
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
    /// Ways out.
    #[serde(default)]
    pub endpoints: Vec<EndpointSpec>,
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

/// Parameters of `tool.run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRun {
    /// Names the run; a known one is joined.
    pub tool_id: String,
    /// Program and arguments, by one of the runtime's templates.
    pub argv: Vec<ByteBuf>,
}

/// Parameters of `tool.kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneTool {
    /// Which.
    pub tool_id: String,
}

/// Parameters of `tool.forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManyTools {
    /// Which.
    pub tool_ids: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolState {
    /// Its name.
    pub tool_id: String,
    /// Whether it goes on.
    pub running: bool,
}

/// Answer to `tool.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolList {
    /// Those that are not forgotten, by name.
    pub tools: Vec<ToolState>,
}

/// Answer to `tool.run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEnd {
    /// When it exited.
    pub exit_code: Option<i32>,
    /// When a signal ended it.
    pub signal: Option<i32>,
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
}
