//! Tags: what the keeper holds for the runtime, so that a successor can take an object up again.
//!
//! msgpack, at most 4 KiB. Times are CLOCK_BOOTTIME nanoseconds.

use dsec_proto::holding::OnLost;
use dsec_proto::keeper::MAX_TAG;
use dsec_proto::runtime::ExecEnd;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::groups::Baseline;
use crate::profiles::ProfileName;

/// Most bytes of argv that a tag repeats.
const MAX_ARGV: usize = 2048;

/// What an object is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tag {
    /// A sandbox's init.
    Sandbox(SandboxTag),
    /// An exec.
    Exec(ExecTag),
    /// The write end of an exec's standard input: an object without a process.
    Stdin,
    /// A file operation; never taken up again.
    File {
        /// The sandbox.
        sandbox_id: String,
        /// Its leaf.
        leaf: u16,
    },
    /// A tool.
    Tool,
    /// A kill that came before its exec: an object without a process.
    Cancelled,
    /// The layers' mount namespace: an object without a process.
    Layers,
    /// The listeners of a sandbox's endpoints, in their order: an object without a process.
    Endpoints {
        /// The sandbox.
        sandbox_id: String,
    },
    /// The sockets in which a sandbox's connections end, and the journal: an object without a process.
    Egress {
        /// The sandbox.
        sandbox_id: String,
    },
    /// A job's lease: an object without a process.
    Job(JobTag),
    /// A disk that is kept: an object without a process.
    Disk(DiskTag),
    /// A snapshot: an object without a process.
    Snapshot(SnapshotTag),
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTag {
    /// Its name.
    pub job: String,
    /// Of its newest holder.
    pub fence: u64,
    /// When its lease is over.
    pub lease_at: u64,
    /// What then.
    pub on_lost: OnLost,
    /// That has been done.
    pub lost: bool,
}

/// The disk of a sandbox that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskTag {
    /// Whose it was, and the name of the subvolume.
    pub sandbox_id: String,
    /// The subvolume.
    pub volume: u64,
    /// What it takes.
    pub bytes: u64,
    /// Digests of the layers below it, 32 bytes each.
    pub layers: Vec<ByteBuf>,
    /// When it is removed.
    pub until: u64,
}

/// A snapshot of what a sandbox had written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTag {
    /// Its ID, and the name of the subvolume.
    pub snapshot_id: String,
    /// Of whom.
    pub sandbox_id: String,
    /// The subvolume.
    pub volume: u64,
    /// What the sandbox had written.
    pub bytes: u64,
    /// Digests of the layers below it, 32 bytes each.
    pub layers: Vec<ByteBuf>,
    /// When it was made; 0: it is still to be.
    pub made: u64,
    /// When it is removed.
    pub until: u64,
    /// How long the sandbox stood still for it.
    pub frozen_ns: u64,
    /// Whether every process stood still.
    pub whole: bool,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxTag {
    /// Its ID.
    pub sandbox_id: String,
    /// Its slot.
    pub slot: u32,
    /// Its subvolume.
    pub volume: u64,
    /// Size of the subvolume.
    pub disk_bytes: u64,
    /// Digests of its layers, 32 bytes each.
    pub layers: Vec<ByteBuf>,
    /// How it is held.
    #[serde(default)]
    pub profile: ProfileName,
    /// 0: never.
    pub idle_ns: u64,
    /// When its lifetime is over.
    pub lifetime_at: u64,
    /// Counters at the beginning.
    pub baseline: Baseline,
    /// Exec that it ends with.
    pub main: Option<String>,
    /// Why it is being ended, before anything is killed.
    pub cause: Option<String>,
    /// The job that it belongs to.
    #[serde(default)]
    pub job: Option<String>,
    /// How long its disk is kept after the end.
    #[serde(default)]
    pub keep_ns: Option<u64>,
    /// What its subvolume held in the end, when that is worth a word, before it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_used: Option<u64>,
    /// How many endpoints it has.
    #[serde(default)]
    pub endpoints: u8,
    /// Whether it has had a network.
    #[serde(default)]
    pub egress: bool,
    /// What it may have on its disk beside `disk_bytes`, because its snapshots hold so much.
    #[serde(default)]
    pub snapshot_bytes: u64,
    /// It stands still for a snapshot, and not because somebody has paused it.
    #[serde(default)]
    pub still_for_snapshot: bool,
    /// How many processors its programs begin with, if not all.
    #[serde(default)]
    pub processors: Option<u32>,
}

/// An exec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecTag {
    /// Its ID.
    pub exec_id: String,
    /// The sandbox.
    pub sandbox_id: String,
    /// Its leaf.
    pub leaf: u16,
    /// The beginning of its arguments.
    pub argv: Vec<ByteBuf>,
    /// When its time is over.
    pub timeout_at: Option<u64>,
    /// Between SIGTERM and the kill.
    pub grace_ns: u64,
    /// When the grace after a SIGTERM is over.
    pub kill_at: Option<u64>,
    /// `timeout` or `cancelled`, before anything is killed.
    pub cause: Option<String>,
    /// Whether there is a standard input.
    pub stdin: bool,
    /// Whether a slow reader stops the program.
    pub backpressure: bool,
    /// For `collect`.
    pub max_output_bytes: u64,
    /// Its end is the sandbox's end.
    pub is_main: bool,
    /// What the edge has committed, while processes in the background hold its pipes: the facts do not change any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ExecEnd>,
    /// Whether it is a session's shell.
    #[serde(default)]
    pub session: bool,
    /// Channel 1 is both outputs.
    #[serde(default)]
    pub merged: bool,
    /// It has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Its filter has a listener.
    #[serde(default)]
    pub listens: bool,
    /// Counters at the beginning.
    pub baseline: Baseline,
}

impl Tag {
    /// As the keeper holds it.
    ///
    /// # Errors
    /// A sentence, when it is longer than the keeper takes.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        let bytes = rmp_serde::to_vec_named(self).map_err(|error| error.to_string())?;
        if bytes.len() > MAX_TAG {
            return Err(format!("a tag of {} bytes is too long", bytes.len()));
        }
        Ok(bytes)
    }

    /// From the keeper. `None` for what this version cannot read.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        rmp_serde::from_slice(bytes).ok()
    }
}

/// The beginning of an argv, short enough for a tag.
#[must_use]
pub fn shortened(argv: &[ByteBuf]) -> Vec<ByteBuf> {
    let mut room = MAX_ARGV;
    let mut kept = Vec::new();
    for part in argv {
        if room < 8 {
            break;
        }
        let length = part.len().min(room - 4);
        kept.push(ByteBuf::from(part[..length].to_vec()));
        room -= length + 4;
    }
    kept
}

/// Object ID of a sandbox's init.
#[must_use]
pub fn sandbox_object(sandbox_id: &str) -> String {
    format!("sb/{sandbox_id}")
}

/// Object ID of an exec.
#[must_use]
pub fn exec_object(sandbox_id: &str, exec_id: &str) -> String {
    format!("ex/{sandbox_id}/{exec_id}")
}

/// Object ID of an exec's standard input.
#[must_use]
pub fn stdin_object(sandbox_id: &str, exec_id: &str) -> String {
    format!("in/{sandbox_id}/{exec_id}")
}

/// Object ID of a kill that came first.
#[must_use]
pub fn cancelled_object(sandbox_id: &str, exec_id: &str) -> String {
    format!("cx/{sandbox_id}/{exec_id}")
}

/// Object ID of a job's lease.
#[must_use]
pub fn job_object(job: &str) -> String {
    format!("job/{job}")
}

/// Object ID of a disk that is kept.
#[must_use]
pub fn disk_object(sandbox_id: &str) -> String {
    format!("disk/{sandbox_id}")
}

/// Object ID of a snapshot.
#[must_use]
pub fn snapshot_object(snapshot_id: &str) -> String {
    format!("snap/{snapshot_id}")
}

/// Object ID of the listeners of a sandbox's endpoints.
#[must_use]
pub fn endpoints_object(sandbox_id: &str) -> String {
    format!("ep/{sandbox_id}")
}

/// Object ID of the sockets in which a sandbox's connections end.
#[must_use]
pub fn egress_object(sandbox_id: &str) -> String {
    format!("eg/{sandbox_id}")
}

/// Object ID of the layers' mount namespace.
pub const LAYERS_OBJECT: &str = "layers-ns";

#[cfg(test)]
mod tests {
    use super::*;

    fn a_sandbox(layers: usize) -> Tag {
        Tag::Sandbox(SandboxTag {
            sandbox_id: "sb-abcdefghijkl-abcdefghijklmnopqrstuvwxyz".into(),
            slot: 4095,
            volume: u64::MAX,
            disk_bytes: u64::MAX,
            layers: vec![ByteBuf::from(vec![7; 32]); layers],
            profile: ProfileName::Default,
            idle_ns: u64::MAX,
            lifetime_at: u64::MAX,
            baseline: Baseline {
                oom_kills: u64::MAX,
                pids_refused: u64::MAX,
            },
            main: Some("abcdefghijklmnopqrstuvwxyz".into()),
            cause: Some("main-exited".into()),
            job: Some("j".repeat(64)),
            keep_ns: Some(u64::MAX),
            disk_used: Some(u64::MAX),
            endpoints: 16,
            egress: true,
            snapshot_bytes: u64::MAX,
            still_for_snapshot: true,
            processors: Some(u32::MAX),
        })
    }

    /// The largest sandbox that a request may ask for fits, and comes back equal.
    #[test]
    fn largest_sandbox_fits() {
        let tag = a_sandbox(64);
        assert_eq!(Tag::decode(&tag.encode().expect("fits")), Some(tag));
    }

    /// A longer one is refused instead of being cut.
    #[test]
    fn longer_is_refused() {
        assert!(a_sandbox(256).encode().is_err());
    }

    /// Long arguments are cut to what a tag can hold, short ones stay.
    #[test]
    fn argv_is_shortened() {
        let short = vec![ByteBuf::from("echo"), ByteBuf::from("hello")];
        assert_eq!(shortened(&short), short);
        let long = vec![ByteBuf::from(vec![b'x'; 1 << 20]); 3];
        assert!(
            shortened(&long)
                .iter()
                .map(|part| part.len())
                .sum::<usize>()
                <= MAX_ARGV
        );
        let many = vec![ByteBuf::new(); 10_000];
        assert!(shortened(&many).len() <= MAX_ARGV / 4);
    }

    /// What another version wrote is recognised as unknown.
    #[test]
    fn unknown_is_none() {
        assert_eq!(Tag::decode(b"\x81\xa5other\xc0"), None);
    }
}
