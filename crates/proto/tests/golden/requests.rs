//! Requests.

use std::collections::BTreeMap;

use dsec_proto::audit::AuditAsked;
use dsec_proto::egress::EventsAsked;
use dsec_proto::holding::*;
use dsec_proto::net::{EndpointSpec, NetSet, PortSpec};
use dsec_proto::runtime::*;
use dsec_proto::session::{RunEnd, RunList, SessionCancel, SessionClose, SessionRun};
use dsec_proto::snapshots::{ManySnapshots, SnapshotMake};
use dsec_session::plan::FileCall;
use serde_bytes::ByteBuf;

use crate::samples::*;
use crate::vectors::{compare, vector};

/// Requests: every field of every method's parameters.
#[test]
fn requests() {
    let sandbox = SandboxSpec {
        sandbox_id: SANDBOX.into(),
        layers: vec!["0".repeat(64), "f".repeat(64)],
        memory_bytes: 1 << 30,
        cpu_milli: 2000,
        pids: 4096,
        disk_bytes: 10 << 30,
        shm_bytes: 64 << 20,
        hostname: "box".into(),
        profile: "default".into(),
        idle_timeout_ms: 900_000,
        lifetime_ms: 14_400_000,
        main: Some(exec_spec()),
        job: Some("train-7".into()),
        from_disk: None,
        from_snapshot: None,
        endpoints: vec![endpoint()],
        egress: Some(table()),
        protected: Vec::new(),
    };
    let net = NetSet {
        sandbox_id: SANDBOX.into(),
        ports: vec![PortSpec {
            port: 3000,
            token: "abcdefghijklmnop".into(),
        }],
        endpoints: vec![EndpointSpec {
            closed: true,
            max_bytes: None,
            ..endpoint()
        }],
        egress: Some(table()),
    };
    let events = EventsAsked {
        sandbox_id: SANDBOX.into(),
        from: 7,
    };
    let attach = ExecAttach {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        mode: Mode::Collect,
        offsets: BTreeMap::from([(1, 5), (2, 0)]),
        credit: BTreeMap::new(),
        max_output_bytes: Some(1000),
        end: None,
        writer: 1 << 63,
    };
    let resize = ExecResize {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        size: PtySize { rows: 50, cols: 80 },
    };
    let live = ExecOutput {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        offsets: BTreeMap::from([(1, 5), (2, 0)]),
        credit: BTreeMap::from([(1, 1 << 22), (2, 1 << 22)]),
    };
    let kept = OutputRead {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        offsets: BTreeMap::from([(1, 5)]),
        ends: BTreeMap::from([(1, 1 << 20), (2, 0)]),
        credit: BTreeMap::from([(1, 70_000)]),
    };
    let read = FileRead {
        sandbox_id: SANDBOX.into(),
        path: ByteBuf::from("a\u{ff}"),
        user: String::new(),
        cwd: None,
        offset: 0,
        limit: None,
        credit: BTreeMap::new(),
    };
    let write = FileWrite {
        sandbox_id: SANDBOX.into(),
        path: ByteBuf::from("/a"),
        user: "1000".into(),
        cwd: Some(ByteBuf::from("/work")),
        mode: Some(0o755),
        parents: true,
        length: 12,
    };
    let calling = FileCalling {
        sandbox_id: SANDBOX.into(),
        user: String::new(),
        cwd: None,
        call: FileCall::Mkdir {
            path: ByteBuf::from("a"),
            parents: true,
            exist_ok: false,
            mode: None,
        },
    };
    let list = FileList {
        sandbox_id: SANDBOX.into(),
        path: ByteBuf::from("/a"),
        user: String::new(),
        cwd: None,
        depth: 2,
        credit: BTreeMap::from([(1, 1 << 20)]),
    };
    let watch = FileWatch {
        sandbox_id: SANDBOX.into(),
        path: ByteBuf::from("/a"),
        user: String::new(),
        cwd: None,
        recursive: true,
        credit: BTreeMap::new(),
    };
    let transfer = Transfer {
        sandbox_id: SANDBOX.into(),
        transfer_id: EXEC.into(),
        resume: false,
        offset: 0,
        path: ByteBuf::from("/a"),
        user: String::new(),
        cwd: None,
        parents: true,
        owners: false,
        follow: false,
        name: Some(ByteBuf::from("a")),
    };
    let kill = ExecKill {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        signal: None,
        grace_ms: 2000,
        cause: "cancelled".into(),
    };
    let stop = SandboxStop {
        sandbox_id: SANDBOX.into(),
        cause: "stopped".into(),
        actor: "token:1".into(),
        grace_ms: 0,
        keep_ms: Some(3_600_000),
    };
    let tail = OutputTail {
        sandbox_id: SANDBOX.into(),
        exec_id: EXEC.into(),
        bytes: 65_536,
    };
    let tool = ToolRun {
        tool_id: "skopeo-1".into(),
        argv: vec![ByteBuf::from("skopeo")],
    };
    compare(
        "runtime_requests.json",
        &[
            vector("hello", &HelloParams { version: VERSION }),
            vector("sandbox.create", &sandbox),
            vector("sandbox.stop", &stop),
            vector(
                "sandbox.forget",
                &ManySandboxes {
                    sandbox_ids: vec![SANDBOX.into()],
                },
            ),
            vector(
                "sandbox.usage",
                &OneSandbox {
                    sandbox_id: SANDBOX.into(),
                },
            ),
            vector("net.set", &net),
            vector("net.events", &events),
            vector(
                "audit.events",
                &AuditAsked {
                    sandbox_id: SANDBOX.into(),
                    from: 250,
                },
            ),
            vector("exec.start", &exec_start()),
            vector("exec.attach", &attach),
            vector("exec.kill", &kill),
            vector("exec.resize", &resize),
            vector(
                "exec.ack",
                &ExecAck {
                    exec_ids: vec![EXEC.into()],
                },
            ),
            vector("exec.output", &live),
            vector("output.tail", &tail),
            vector("output.read", &kept),
            vector("file.read", &read),
            vector("file.write", &write),
            vector("file.call", &calling),
            vector("file.list", &list),
            vector("file.watch", &watch),
            vector("transfer.upload", &transfer),
            vector(
                "transfer.cancel",
                &TransferCancel {
                    sandbox_id: SANDBOX.into(),
                    transfer_id: EXEC.into(),
                },
            ),
            vector(
                "layer.evict",
                &LayerEvict {
                    digests: vec!["0".repeat(64)],
                },
            ),
            vector("layer.loading", &LoadingAsk { after: 7 }),
            vector("tool.run", &tool),
            vector(
                "tool.kill",
                &OneTool {
                    tool_id: "skopeo-1".into(),
                },
            ),
            vector(
                "tool.forget",
                &ManyTools {
                    tool_ids: vec!["skopeo-1".into()],
                },
            ),
            vector(
                "sandbox.freeze",
                &SandboxFreeze {
                    sandbox_id: SANDBOX.into(),
                    cause: "paused".into(),
                },
            ),
            vector(
                "job.lease",
                &JobLease {
                    job: "train-7".into(),
                    fence: 1 << 41,
                    lease_ms: 60_000,
                    on_lost: OnLost::Pause,
                },
            ),
            vector(
                "job.end",
                &OneJob {
                    job: "train-7".into(),
                },
            ),
            vector(
                "snapshot.make",
                &SnapshotMake {
                    snapshot_id: SNAPSHOT.into(),
                    sandbox_id: SANDBOX.into(),
                    keep_ms: 3_600_000,
                },
            ),
            vector(
                "snapshot.remove",
                &ManySnapshots {
                    snapshot_ids: vec![SNAPSHOT.into()],
                },
            ),
        ],
    );
}

/// Sessions: requests and answers.
#[test]
fn sessions() {
    let run = SessionRun {
        sandbox_id: SANDBOX.into(),
        session_id: EXEC.into(),
        run_id: "b".repeat(26),
        script: Some(ByteBuf::from("echo \u{ff}")),
        length: None,
        timeout_ms: Some(1500),
        grace_ms: 2000,
        max_output_bytes: 10 << 20,
        merge_stderr: true,
    };
    let long = SessionRun {
        script: None,
        length: Some(10 << 20),
        timeout_ms: None,
        ..run.clone()
    };
    let cancel = SessionCancel {
        sandbox_id: SANDBOX.into(),
        session_id: EXEC.into(),
        run_id: "b".repeat(26),
        grace_ms: 0,
    };
    let close = SessionClose {
        sandbox_id: SANDBOX.into(),
        session_id: EXEC.into(),
        grace_ms: 2000,
    };
    let end = RunEnd {
        run_id: "b".repeat(26),
        ended: "exited".into(),
        exit_code: Some(3),
        signal: None,
        oom_kills: 1,
        quota_hits: vec!["pids".into()],
        stdout_from: 1 << 33,
        stdout_total: 5,
        stderr_from: 0,
        stderr_total: 0,
        started_at: 1_700_000_000.5,
        duration_ns: 1_500_000,
        usage: ExecUsage {
            cpu_ns: 5,
            memory_peak_bytes: 6,
        },
        closed: true,
        merged: true,
    };
    compare(
        "sessions.json",
        &[
            vector("session.run", &run),
            vector("session.run long", &long),
            vector("session.cancel", &cancel),
            vector("session.close", &close),
            vector("end", &end),
            vector("session.runs", &RunList { runs: vec![end] }),
        ],
    );
}
