//! Answers and events.

use std::collections::BTreeMap;

use dsec_proto::error::WireError;
use dsec_proto::holding::*;
use dsec_proto::net::{EndpointCount, NetUsage};
use dsec_proto::runtime::*;
use dsec_proto::snapshots::{SnapshotList, SnapshotState};
use dsec_session::plan::FileInfo;
use serde_bytes::ByteBuf;

use crate::samples::*;
use crate::vectors::{compare, vector};

/// Answers and events.
#[test]
fn answers() {
    let hello = Hello {
        version: VERSION,
        boot_id: "boot".into(),
        node: "local".into(),
        capabilities: BTreeMap::from([("files".into(), true)]),
    };
    let started = SandboxStarted {
        sandbox_id: SANDBOX.into(),
        started_at: 1_700_000_000.125,
        slot: 17,
        existing: false,
        phases: BTreeMap::from([("init".into(), 900), ("overlay".into(), 260)]),
    };
    let net = NetUsage {
        inbound: 2,
        endpoints: vec![EndpointCount {
            requests: 3,
            refused: 1,
            sent_bytes: 1 << 33,
            received_bytes: 7,
            connections: 1,
        }],
        egress: Some(egress_record().count),
    };
    let state = SandboxState {
        sandbox_id: SANDBOX.into(),
        state: "ended".into(),
        started_at: 1.5,
        last_activity_at: 2.5,
        execs_running: 0,
        paused: false,
        end: Some(sandbox_end()),
    };
    let exec = ExecState {
        exec_id: EXEC.into(),
        state: "running".into(),
        argv: vec![ByteBuf::from("sh")],
        started_at: 1.5,
        stdout_total: 1,
        stderr_total: 2,
        end: None,
    };
    let stats = NodeStats {
        sandboxes: 1,
        execs: 2,
        pool_bytes: 3,
        pool_used_bytes: 4,
        pool_pending_bytes: 5,
        slots_ready: 6,
        slots_used: 7,
        descriptors_used: 8,
        descriptors_limit: 20_000,
        audit: BTreeMap::from([("limit memory".into(), 3)]),
    };
    let ended = RuntimeEvent::ExecEnded {
        sandbox_id: SANDBOX.into(),
        end: exec_end(),
    };
    compare(
        "runtime_answers.json",
        &[
            vector("hello", &hello),
            vector("sandbox.create", &started),
            vector("net.usage", &net),
            vector("net.events", &egress_record()),
            vector("audit.events", &audit_record()),
            vector("sandbox.stop", &sandbox_end()),
            vector(
                "sandbox.list",
                &SandboxList {
                    sandboxes: vec![state],
                },
            ),
            vector("sandbox.usage", &usage()),
            vector("exec.start item", &Started { started_at: 1.5 }),
            vector("exec.start", &exec_end()),
            vector("exec.list", &ExecList { execs: vec![exec] }),
            vector(
                "gap item",
                &Gap {
                    gap: 1,
                    from: 8 << 20,
                    to: 12 << 20,
                },
            ),
            vector(
                "file.read",
                &FileReport {
                    bytes: 1,
                    size: 2,
                    mode: 0o644,
                },
            ),
            vector(
                "file.call",
                &FileCalled {
                    info: Some(FileInfo {
                        path: ByteBuf::from("a"),
                        kind: "link".into(),
                        size: 1,
                        mode: 0o777,
                        uid: 0,
                        gid: 0,
                        mtime_ns: 1_500_000_000,
                        target: Some(ByteBuf::from("b")),
                    }),
                    entries: 0,
                },
            ),
            vector("file.list", &FileListed { entries: 3 }),
            vector("transfer.upload item", &TransferAt { at: 4 << 20 }),
            vector(
                "transfer.upload",
                &TransferEnd {
                    bytes: 1 << 32,
                    entries: 2,
                    skipped: 0,
                },
            ),
            vector(
                "layer.evict",
                &Evicted {
                    evicted: Vec::new(),
                },
            ),
            vector("layer.loading", &loading()),
            vector(
                "tool.run",
                &ToolEnd {
                    exit_code: Some(0),
                    signal: None,
                },
            ),
            vector(
                "tool.list",
                &ToolList {
                    tools: vec![ToolState {
                        tool_id: "skopeo-1".into(),
                        running: true,
                    }],
                },
            ),
            vector("stats", &stats),
            vector(
                "sandbox.freeze",
                &Frozen {
                    paused: true,
                    whole: false,
                    waited_ns: 2_000_000_000,
                },
            ),
            vector("sandbox.thaw", &Thawed { resumed: true }),
            vector(
                "disk.list",
                &DiskList {
                    disks: vec![KeptDisk {
                        sandbox_id: SANDBOX.into(),
                        kept_until: 1_700_003_600.5,
                        bytes: 16_384,
                    }],
                },
            ),
            vector(
                "events item sandbox.paused",
                &RuntimeEvent::SandboxPaused {
                    sandbox_id: SANDBOX.into(),
                    at: 1.5,
                    cause: "lease".into(),
                    whole: true,
                },
            ),
            vector(
                "events item sandbox.resumed",
                &RuntimeEvent::SandboxResumed {
                    sandbox_id: SANDBOX.into(),
                    at: 1.5,
                    cause: "exec".into(),
                },
            ),
            vector(
                "events item job.lost",
                &RuntimeEvent::JobLost {
                    job: "train-7".into(),
                    fence: 7,
                    at: 1.5,
                },
            ),
            vector(
                "events item disk.removed",
                &RuntimeEvent::DiskRemoved {
                    sandbox_id: SANDBOX.into(),
                },
            ),
            vector(
                "snapshot.list",
                &SnapshotList {
                    snapshots: vec![SnapshotState {
                        snapshot_id: SNAPSHOT.into(),
                        sandbox_id: SANDBOX.into(),
                        made_at: 1_700_000_000.5,
                        kept_until: 1_700_003_600.5,
                        bytes: 16_384,
                        frozen_ns: 4_000_000,
                        whole: true,
                    }],
                },
            ),
            vector(
                "events item snapshot.removed",
                &RuntimeEvent::SnapshotRemoved {
                    snapshot_id: SNAPSHOT.into(),
                },
            ),
            vector("events item exec.ended", &ended),
            vector(
                "events item sandbox.ended",
                &RuntimeEvent::SandboxEnded { end: sandbox_end() },
            ),
            vector("error", &WireError::gone(SANDBOX, "idle")),
            vector(
                "error full",
                &WireError::invalid("bad")
                    .in_phase("cwd")
                    .remedy("mend it")
                    .with("errno", 2),
            ),
        ],
    );
}
