//! Golden vectors: `tests/golden/*.json` at the root of the repository hold each message as JSON and as the bytes of its
//! msgpack. The Python tests read the same files, which holds the two sides together.
//!
//! `DSEC_GOLDEN=write cargo test -p dsec-proto` writes them anew after a deliberate change.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dsec_proto::error::WireError;
use dsec_proto::frame::{self, Incoming};
use dsec_proto::holding::*;
use dsec_proto::net::{EndpointCount, EndpointSpec, NetSet, NetUsage, PortSpec};
use dsec_proto::runtime::*;
use dsec_proto::session::{RunEnd, RunList, SessionCancel, SessionClose, SessionRun};
use dsec_session::plan::{FileCall, FileInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

const SANDBOX: &str = "sb-local-abcdefghijklmnopqrstuvwxyz";
const EXEC: &str = "abcdefghijklmnopqrstuvwxyz";

/// One message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Vector {
    name: String,
    /// JSON has no bytes: they are arrays of numbers in it.
    json: serde_json::Value,
    msgpack: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
        .collect()
}

/// A message, after checking that its bytes come back as the same value.
fn vector<T>(name: &str, value: &T) -> Vector
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = rmp_serde::to_vec_named(value).expect("encodes");
    let back: T = rmp_serde::from_slice(&bytes).expect("decodes");
    assert_eq!(&back, value, "{name}");
    let json = serde_json::to_value(value).expect("has a JSON form");
    Vector {
        name: name.into(),
        json,
        msgpack: hex(&bytes),
    }
}

fn compare(file: &str, vectors: &[Vector]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(file);
    if std::env::var("DSEC_GOLDEN").as_deref() == Ok("write") {
        let text = serde_json::to_string_pretty(vectors).expect("JSON");
        std::fs::write(&path, text + "\n").expect("is written");
    }
    let text = std::fs::read_to_string(&path).expect("the golden file is there");
    let golden: Vec<Vector> = serde_json::from_str(&text).expect("is JSON");
    for (ours, theirs) in vectors.iter().zip(&golden) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(vectors.len(), golden.len());
}

fn exec_spec() -> ExecSpec {
    ExecSpec {
        exec_id: EXEC.into(),
        sandbox_id: SANDBOX.into(),
        argv: vec![
            ByteBuf::from("sh"),
            ByteBuf::from("-c"),
            ByteBuf::from(vec![0xff, 0x80]),
        ],
        programs: Some(vec![ByteBuf::from("/bin/bash"), ByteBuf::from("/bin/sh")]),
        env: vec![ByteBuf::from("PATH=/bin")],
        cwd: Some(ByteBuf::from("/work")),
        create_cwd: true,
        user: "www-data:33".into(),
        timeout_ms: Some(1500),
        grace_ms: 2000,
        stdin: true,
        backpressure: false,
        max_output_bytes: 10 << 20,
        is_main: true,
        merge_stderr: false,
        pty: Some(PtySize {
            rows: 24,
            cols: 300,
        }),
        script: None,
    }
}

fn exec_start() -> ExecStart {
    let spec = exec_spec();
    ExecStart {
        exec_id: spec.exec_id,
        sandbox_id: spec.sandbox_id,
        argv: spec.argv,
        programs: None,
        env: spec.env,
        cwd: None,
        create_cwd: false,
        user: String::new(),
        timeout_ms: None,
        grace_ms: 2000,
        stdin: false,
        backpressure: false,
        max_output_bytes: 10 << 20,
        is_main: false,
        merge_stderr: true,
        pty: None,
        script: Some(ByteBuf::from(vec![0xff, 10])),
        mode: Mode::Stream,
        credit: BTreeMap::from([(1, 1 << 20), (2, 1 << 20)]),
    }
}

fn usage() -> Usage {
    Usage {
        cpu_ns: 1_500_000_000,
        memory_bytes: 1 << 20,
        memory_peak_bytes: 1 << 30,
        disk_bytes: Some(16_384),
        pids: 3,
        pids_peak: Some(70_000),
        oom_kills: 1,
        read_bytes: None,
        written_bytes: None,
        memory_byte_s: 1 << 34,
    }
}

fn sandbox_end() -> SandboxEnd {
    SandboxEnd {
        sandbox_id: SANDBOX.into(),
        cause: "main-exited".into(),
        ended_at: 1_700_000_000.25,
        exit_code: Some(7),
        usage: usage(),
        proof: Proof {
            processes: 0,
            waited_ns: 250_000,
        },
        kept_until: None,
    }
}

fn exec_end() -> ExecEnd {
    ExecEnd {
        exec_id: EXEC.into(),
        ended: "timeout".into(),
        exit_code: None,
        signal: Some(9),
        oom_kills: 0,
        quota_hits: vec!["disk".into(), "pids".into()],
        stdout_total: 1 << 33,
        stderr_total: 0,
        started_at: 1_700_000_000.5,
        duration_ns: 1_500_000_000,
        usage: ExecUsage {
            cpu_ns: 5,
            memory_peak_bytes: 6,
        },
        merged: true,
    }
}

fn endpoint() -> EndpointSpec {
    EndpointSpec {
        name: "llm".into(),
        tls: true,
        host: "models.example".into(),
        port: 443,
        path: "/v1".into(),
        max_connections: 64,
        max_bytes: Some(1 << 30),
        max_requests_per_minute: Some(600),
        closed: false,
    }
}

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
        endpoints: vec![endpoint()],
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

/// Frames of each kind, with the length before them.
#[test]
fn frames() {
    let named = |name: &str, json: serde_json::Value, bytes: Vec<u8>| Vector {
        name: name.into(),
        json,
        msgpack: hex(&bytes),
    };
    let long = vec![7u8; 300];
    compare(
        "frames.json",
        &[
            named(
                "open",
                serde_json::json!([1, 0, "hello", {"version": 1}]),
                frame::open(1, "hello", &HelloParams { version: 1 }),
            ),
            named(
                "data",
                serde_json::json!([300, 1, 1, 70_000, [104, 105]]),
                frame::data(300, 1, 70_000, b"hi"),
            ),
            named(
                "data empty",
                serde_json::json!([1, 1, 0, 5, []]),
                frame::data(1, 0, 5, b""),
            ),
            named(
                "data long",
                serde_json::json!([1, 1, 2, 0, long]),
                frame::data(1, 2, 0, &[7; 300]),
            ),
            named(
                "until",
                serde_json::json!([1, 2, 0, 1u64 << 33]),
                frame::until(1, 0, 1 << 33),
            ),
            named(
                "end",
                serde_json::json!([70_000, 3, {}]),
                frame::end(70_000, &Empty {}),
            ),
            named(
                "error",
                serde_json::to_value((1, 4, WireError::not_found("no"))).expect("JSON"),
                frame::error(1, &WireError::not_found("no")),
            ),
            named("close", serde_json::json!([1, 5]), frame::close(1)),
            named(
                "item",
                serde_json::json!([1, 6, {"started_at": 1.5}]),
                frame::item(1, &Started { started_at: 1.5 }),
            ),
        ],
    );
}

/// What clients write is read back as what it was.
#[test]
fn client_frames_are_read() {
    let opened = frame::open(9, "stats", &Empty {});
    assert_eq!(
        frame::decode(&opened[4..]).expect("reads"),
        (
            9,
            Incoming::Open {
                method: "stats",
                params: &[0x80]
            }
        )
    );
    let data = frame::data(9, 0, 1 << 40, b"abc");
    assert_eq!(
        frame::decode(&data[4..]).expect("reads"),
        (
            9,
            Incoming::Data {
                channel: 0,
                offset: 1 << 40,
                bytes: b"abc"
            }
        )
    );
    assert_eq!(
        frame::decode(&frame::until(9, 2, 7)[4..]).expect("reads"),
        (
            9,
            Incoming::Until {
                channel: 2,
                offset: 7
            }
        )
    );
    assert_eq!(
        frame::decode(&frame::close(9)[4..]).expect("reads"),
        (9, Incoming::Close)
    );
}

/// Anything else is refused and never panics: cuts at each byte, kinds of the other direction, bytes behind the end.
#[test]
fn malformed_frames_are_refused() {
    let data = frame::data(9, 0, 5, b"abc");
    for length in 0..data.len() - 4 {
        assert!(frame::decode(&data[4..4 + length]).is_err(), "{length}");
    }
    for wrong in [frame::end(1, &Empty {}), frame::item(1, &Empty {})] {
        assert!(frame::decode(&wrong[4..]).is_err());
    }
    let mut longer = frame::close(1);
    longer.push(0);
    assert!(frame::decode(&longer[4..]).is_err());
    assert!(frame::decode(&unhex("95cf0000000100000000010000c400")).is_err());
}

/// An unknown field is refused by its name; a wrong type and a missing field are the caller's fault.
#[test]
fn unknown_fields_are_named() {
    let bytes =
        rmp_serde::to_vec_named(&serde_json::json!({"version": 1, "colour": 2})).expect("encodes");
    let error = frame::params::<HelloParams>(&bytes).expect_err("is refused");
    assert_eq!(error.code, "unsupported");
    assert!(error.message.contains("colour"), "{}", error.message);
    let bytes = rmp_serde::to_vec_named(&serde_json::json!({"version": "x"})).expect("encodes");
    assert_eq!(
        frame::params::<HelloParams>(&bytes)
            .expect_err("is refused")
            .code,
        "invalid_argument"
    );
    let bytes = rmp_serde::to_vec_named(&serde_json::json!({})).expect("encodes");
    assert_eq!(
        frame::params::<HelloParams>(&bytes)
            .expect_err("is refused")
            .code,
        "invalid_argument"
    );
}

/// Answers with more fields than we know are read all the same.
#[test]
fn answers_may_say_more() {
    let bytes =
        rmp_serde::to_vec_named(&serde_json::json!({"exit_code": 1, "signal": null, "new": true}))
            .expect("encodes");
    let end: ToolEnd = rmp_serde::from_slice(&bytes).expect("decodes");
    assert_eq!(end.exit_code, Some(1));
}
