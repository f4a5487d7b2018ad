//! How sandboxes begin and end, and that failed beginnings leave nothing.

use dsec_proto::error::WireError;
use dsec_proto::runtime::{Empty, ExecEnd, Mode, NodeStats};
use serde_json::Value;

use super::client::{exec_spec, Said};
use super::node::Node;

fn stats(client: &mut super::client::Client) -> NodeStats {
    client.call("stats", &Empty {}).expect("stats")
}

/// A stop is confirmed, can be repeated, and ends what runs with its cause; then the slot is free.
#[test]
fn stop_is_confirmed() {
    let node = Node::start();
    let (mut client, mut other) = (node.client(), node.client());
    let sandbox = node.sandbox(&mut client);
    other.start(
        &exec_spec(&sandbox, &["sh", "-c", "echo so far; sleep 1000"]),
        Mode::Stream,
    );
    while !matches!(other.hear().expect("answers"), Said::Data { .. }) {}
    let end = client.stop(&sandbox);
    assert_eq!((end.cause.as_str(), end.proof.processes), ("stopped", 0));
    assert!(node.processes().is_empty());
    let error = other.follow::<ExecEnd>(None).0.expect_err("is gone");
    assert_eq!(
        (error.code.as_str(), error.fault.as_str()),
        ("sandbox_gone", "caller")
    );
    assert_eq!(client.stop(&sandbox), end);
    let error = client
        .exec(&exec_spec(&sandbox, &["true"]))
        .0
        .expect_err("is gone");
    assert_eq!(error.details["cause"], "stopped");
    assert_eq!(stats(&mut client).slots_used, 1);
    client.forget(&sandbox);
    assert_eq!(stats(&mut client).slots_used, 0);
    node.down();
}

/// Slots whose groups were killed are used again: the kernel kills what is born into such a group.
#[test]
fn slots_are_used_again() {
    let node = Node::start();
    let mut client = node.client();
    for _ in 0..30 {
        let sandbox = node.sandbox(&mut client);
        assert_eq!(client.sh(&sandbox, "echo ok").1.stdout(), "ok\n");
        client.stop(&sandbox);
        client.forget(&sandbox);
    }
    node.down();
}

/// The end of the main process is the end of the sandbox, with its exit code; both are told as events.
#[test]
fn main_process_is_the_sandbox() {
    let node = Node::start();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    let mut spec = node.spec();
    let mut main = exec_spec(&spec.sandbox_id, &["sh", "-c", "read x < /go; exit 7"]);
    main.argv[2] = serde_bytes::ByteBuf::from("mkfifo /go; read x < /go; exit 7");
    main.is_main = true;
    spec.main = Some(main);
    client.create(&spec).expect("is made");
    assert!(client.create(&spec).expect("is known").existing);
    client.sh(
        &spec.sandbox_id,
        "while ! [ -p /go ]; do sleep 0.01; done; echo > /go",
    );
    let mut event = || match listener.hear().expect("an event") {
        Said::Item(item) => item,
        other => panic!("{other:?}"),
    };
    let ended: Value = loop {
        let event = event();
        if event["type"] == "sandbox.ended" {
            break event;
        }
    };
    assert_eq!(ended["end"]["cause"], "main-exited");
    assert_eq!(ended["end"]["exit_code"], 7);
    node.down();
}

/// Idle and lifetime are kept by the runtime alone.
#[test]
fn time_ends_sandboxes() {
    let node = Node::start();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    let (mut idle, mut short) = (node.spec(), node.spec());
    idle.idle_timeout_ms = 300;
    short.lifetime_ms = 300;
    client.create(&idle).expect("is made");
    client.create(&short).expect("is made");
    let mut causes = std::collections::BTreeMap::new();
    while causes.len() < 2 {
        if let Said::Item(item) = listener.hear().expect("an event") {
            causes.insert(
                item["end"]["sandbox_id"].to_string(),
                item["end"]["cause"].to_string(),
            );
        }
    }
    assert_eq!(causes[&format!("\"{}\"", idle.sandbox_id)], "\"idle\"");
    assert_eq!(causes[&format!("\"{}\"", short.sandbox_id)], "\"lifetime\"");
    node.down();
}

/// An exec that runs keeps its sandbox from being idle.
#[test]
fn running_is_not_idle() {
    let node = Node::start();
    let mut client = node.client();
    let mut spec = node.spec();
    spec.idle_timeout_ms = 200;
    client.create(&spec).expect("is made");
    let (end, _) = client.sh(&spec.sandbox_id, "sleep 0.7; echo done");
    assert_eq!(end.exit_code, Some(0));
    node.down();
}

/// Creations that fail say why and leave nothing behind.
#[test]
fn failed_creations_leave_nothing() {
    let node = Node::start();
    let mut client = node.client();
    let mut spec = node.spec();
    spec.layers.push("0".repeat(64));
    assert_eq!(
        client.create(&spec).expect_err("no layer").code,
        "not_found"
    );
    let mut spec = node.spec();
    let mut main = exec_spec(&spec.sandbox_id, &["no-such-program"]);
    main.is_main = true;
    spec.main = Some(main);
    assert_eq!(
        client.create(&spec).expect_err("no program").code,
        "executable_not_found"
    );
    assert_eq!(client.list().sandboxes.len(), 0);
    assert_eq!(stats(&mut client).slots_used, 0);
    assert!(node.processes().is_empty());
    spec.main = None;
    client.create(&spec).expect("the ID is free");
    node.down();
}

/// Hostile requests are refused by name, and the runtime lives on.
#[test]
fn bad_requests_are_refused() {
    let node = Node::start();
    let mut client = node.client();
    let mut refused = |method: &str, params: Value| {
        let result: Result<Value, WireError> = client.call(method, &params);
        result.expect_err("is refused").code
    };
    assert_eq!(refused("no.such", Value::Null), "unsupported");
    assert_eq!(
        refused("stats", serde_json::json!({"more": 1})),
        "unsupported"
    );
    assert_eq!(
        refused("sandbox.usage", serde_json::json!({"sandbox_id": 5})),
        "invalid_argument"
    );
    assert_eq!(
        refused("sandbox.usage", serde_json::json!({"sandbox_id": "sb-x"})),
        "not_found"
    );
    assert_eq!(
        refused(
            "output.remove",
            serde_json::json!({"sandbox_ids": ["../.."]})
        ),
        "invalid_argument"
    );
    assert_eq!(
        refused("layer.evict", serde_json::json!({"digests": ["../.."]})),
        "invalid_argument"
    );
    assert_eq!(
        refused("hello", serde_json::json!({"version": 99})),
        "unsupported"
    );
    node.down();
}

/// A node takes no more sandboxes than it is configured for, and more when one is gone.
#[test]
fn node_can_be_full() {
    let node = Node::start();
    let mut client = node.client();
    let all: Vec<String> = (0..8).map(|_| node.sandbox(&mut client)).collect();
    assert_eq!(
        client.create(&node.spec()).expect_err("is full").code,
        "capacity"
    );
    client.stop(&all[0]);
    client.forget(&all[0]);
    node.sandbox(&mut client);
    node.down();
}
