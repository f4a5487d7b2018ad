//! Values that occur in more than one message.

use std::collections::BTreeMap;

use dsec_proto::audit::{AuditEvent, AuditKind, AuditRecord};
use dsec_proto::egress::{
    EgressCount, EgressEvent, EgressRecord, EgressRule, EgressTable, Reason, RoutedRule,
    TABLE_VERSION,
};
use dsec_proto::loading::{LayerLoading, LoadingCounts};
use dsec_proto::net::{EndpointCount, EndpointSpec};
use dsec_proto::runtime::*;
use serde_bytes::ByteBuf;

pub const SANDBOX: &str = "sb-local-abcdefghijklmnopqrstuvwxyz";
pub const SNAPSHOT: &str = "sn-local-abcdefghijklmnopqrstuvwxyz";
pub const EXEC: &str = "abcdefghijklmnopqrstuvwxyz";

pub fn exec_spec() -> ExecSpec {
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

pub fn exec_start() -> ExecStart {
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

pub fn usage() -> Usage {
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

pub fn sandbox_end() -> SandboxEnd {
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
        endpoints: vec![EndpointCount {
            requests: 3,
            refused: 1,
            sent_bytes: 1 << 33,
            received_bytes: 7,
            connections: 0,
        }],
        egress: Some(egress_record()),
        audit: Some(audit_record()),
    }
}

pub fn audit_record() -> AuditRecord {
    let event = AuditEvent {
        number: 6,
        at: 1_700_000_000.25,
        kind: AuditKind::Syscall,
        reason: "mount".into(),
        name: Some("umount2".into()),
        exec_id: Some(EXEC.into()),
        count: 1 << 33,
    };
    let bare = AuditEvent {
        number: 7,
        kind: AuditKind::Limit,
        reason: "memory".into(),
        name: None,
        exec_id: None,
        ..event.clone()
    };
    AuditRecord {
        events: 8,
        latest: vec![event, bare],
    }
}

pub fn egress_record() -> EgressRecord {
    EgressRecord {
        count: EgressCount {
            connections: 1,
            refused: 2,
            sent_bytes: 3,
            received_bytes: 1 << 33,
            names: 4,
            names_refused: 5,
        },
        events: 7,
        latest: vec![EgressEvent {
            number: 6,
            at: 1_700_000_000.25,
            kind: "connection".into(),
            reason: Reason::NamesDisagree,
            name: Some("a.example.test".into()),
            address: Some("2001:db8::1".into()),
            port: Some(443),
        }],
    }
}

pub fn table() -> EgressTable {
    EgressTable {
        version: TABLE_VERSION,
        allow: false,
        rules: vec![EgressRule {
            allow: true,
            domain: Some("*.example.test".into()),
            range: Some("0.0.0.0/0".into()),
            ports: vec![(443, 443), (8000, 8010)],
        }],
        closed: vec!["10.0.0.0/8".into()],
        opened: vec!["10.9.0.0/16".into()],
        ech: false,
        max_connections: 256,
        max_connections_per_minute: Some(600),
        max_bytes: None,
        max_bytes_per_s: Some(1 << 20),
        routed: vec![RoutedRule {
            allow: true,
            protocol: 17,
            range: Some("192.0.2.0/24".into()),
            ports: vec![(5000, 5010)],
        }],
    }
}

pub fn exec_end() -> ExecEnd {
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

pub fn endpoint() -> EndpointSpec {
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

pub fn loading_counts() -> LoadingCounts {
    LoadingCounts {
        hits: 1,
        misses: 2,
        errors: 3,
        waiting: 4,
        wait_p50_us: 5,
        wait_p99_us: 6,
        wait_total_us: 7,
        requests: 8,
        retries: 9,
        stored_bytes: 10,
        fetched_bytes: 1 << 33,
        corrupt: 11,
        failed: 12,
        fetch_p50_us: 13,
        fetch_p99_us: 14,
        fetch_total_us: 15,
    }
}

pub fn layer_loading() -> LayerLoading {
    LayerLoading {
        layer: 8,
        digest: "d".repeat(64),
        bytes: 10 << 30,
        filled_bytes: 1 << 20,
        counts: loading_counts(),
    }
}

pub fn loading() -> Loading {
    Loading {
        on_demand: true,
        fetcher: true,
        oldest_wait_ms: 16,
        counts: loading_counts(),
        layers: vec![layer_loading()],
        more: false,
    }
}
