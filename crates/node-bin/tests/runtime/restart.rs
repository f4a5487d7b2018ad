//! A runtime that dies costs nothing; a keeper that dies takes the sandboxes along.

use std::path::PathBuf;
use std::time::Duration;

use dsec_proto::runtime::{ExecEnd, Mode, PtySize};

use super::client::{exec_spec, Said};
use super::node::Node;

/// Output goes on at the exact byte, standard input at the exact offset, under the successor.
#[test]
fn streams_go_on() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let counting = exec_spec(
        &sandbox,
        &[
            "sh",
            "-c",
            "i=0; while [ $i -lt 50 ]; do seq 1 1000; i=$((i+1)); sleep 0.02; done",
        ],
    );
    let mut reading = exec_spec(&sandbox, &["cat"]);
    reading.stdin = true;
    let (mut one, mut two) = (node.client(), node.client());
    two.start(&reading, Mode::Stream);
    while !matches!(two.hear().expect("answers"), Said::Until(_)) {}
    two.data(0, b"before ");
    while !matches!(two.hear().expect("answers"), Said::Data { .. }) {}
    one.start(&counting, Mode::Stream);
    let mut seen = Vec::new();
    while seen.len() < 20_000 {
        if let Said::Data { bytes, .. } = one.hear().expect("answers") {
            seen.extend(bytes);
        }
    }
    node.kill_runtime();

    let (mut one, mut two) = (node.client(), node.client());
    two.attach(&reading, Mode::Stream, 0);
    while !matches!(two.hear().expect("answers"), Said::Until(_)) {}
    two.data(7, b"after");
    two.data(12, b"");
    let (end, heard) = two.follow::<ExecEnd>(None);
    assert_eq!(
        (
            end.expect("ends").exit_code,
            heard.stdout().ends_with("after")
        ),
        (Some(0), true)
    );
    one.attach(&counting, Mode::Stream, seen.len() as u64);
    let (end, heard) = one.follow::<ExecEnd>(None);
    assert_eq!(end.expect("ends").exit_code, Some(0));
    seen.extend(&heard.bytes[1]);
    let once: Vec<u8> = (1..=1000)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect();
    assert!(seen == once.repeat(50));
    node.down();
}

/// Deadlines, ends that came meanwhile, kills that came first, and ended sandboxes are all still known.
#[test]
fn everything_is_remembered() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let stopped = node.sandbox(&mut client);
    client.stop(&stopped);
    let mut timed = exec_spec(&sandbox, &["sleep", "1000"]);
    timed.timeout_ms = Some(1000);
    client.start(&timed, Mode::Detach);
    client
        .follow::<serde_json::Value>(None)
        .0
        .expect("has begun");
    let done = exec_spec(&sandbox, &["sh", "-c", "echo done; exit 4"]);
    client.exec(&done).0.expect("ends");
    let cancelled = exec_spec(&sandbox, &["true"]);
    client.kill(&cancelled, None, 0).expect("is remembered");
    node.kill_runtime();

    let mut client = node.client();
    let states = client.list().sandboxes;
    let of = |id: &str| {
        states
            .iter()
            .find(|state| state.sandbox_id == id)
            .expect("is listed")
    };
    assert_eq!(of(&sandbox).state, "running");
    assert_eq!(
        of(&stopped).end.as_ref().expect("has ended").cause,
        "stopped"
    );
    let (end, heard) = client.exec(&done);
    assert_eq!(
        (end.expect("ended").exit_code, heard.stdout()),
        (Some(4), "done\n".into())
    );
    assert_eq!(client.exec(&cancelled).0.expect("ends").ended, "cancelled");
    client.attach(&timed, Mode::Collect, 0);
    let end = client.follow::<ExecEnd>(None).0.expect("ends");
    assert_eq!(end.ended, "timeout");
    assert!(end.duration_ns < 10_000_000_000);
    assert_eq!(client.sh(&sandbox, "echo new").1.stdout(), "new\n");
    node.down();
}

/// A program that begins only after the runtime's death is heard, its terminal too, and its refused calls are answered.
#[test]
fn what_had_not_begun() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    // What is born into a slot that stands still does not begin.
    let freeze = |on: &str| {
        let below = |group: PathBuf| std::fs::read_dir(group).into_iter().flatten().flatten();
        for slot in node.groups().into_iter().flat_map(below) {
            let _ = std::fs::write(slot.path().join("cgroup.freeze"), on);
        }
    };
    for pty in [None, Some(PtySize { rows: 9, cols: 80 })] {
        let script = "busybox mount -t tmpfs none /tmp 2> /dev/null; echo refused $?";
        let mut late = exec_spec(&sandbox, &["sh", "-c", script]);
        late.pty = pty;
        late.merge_stderr = pty.is_some();
        late.timeout_ms = Some(20_000);
        freeze("1");
        node.client().start(&late, Mode::Detach);
        std::thread::sleep(Duration::from_millis(500));
        node.kill_runtime();
        let mut client = node.client();
        assert_eq!(client.list().sandboxes.len(), 1);
        freeze("0");
        let (end, heard) = client.exec(&late);
        assert_eq!(end.expect("ends").ended, "exited");
        assert!(heard.stdout().starts_with("refused "), "{}", heard.stdout());
    }
    node.down();
}

/// Without a keeper nothing of a sandbox lives on; the next one starts from nothing, on the same pool.
#[test]
fn keeper_takes_all_along() {
    let mut node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let (end, _) = client.sh(&sandbox, "sleep 1000 & echo");
    assert_eq!(end.exit_code, Some(0));
    assert!(!node.processes().is_empty());
    node.kill_keeper();
    while client.hear().is_ok() {}
    node.launch();
    let mut client = node.client();
    assert!(node.processes().is_empty());
    assert!(client.list().sandboxes.is_empty());
    node.sandbox(&mut client);
    node.down();
}
