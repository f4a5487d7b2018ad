//! Output and standard input.

use dsec_proto::error::WireError;
use dsec_proto::runtime::{Empty, ExecEnd, Mode, OutputTail};

use super::client::{exec_spec, Client, Heard, Said};
use super::node::Node;

fn numbers(last: u32) -> Vec<u8> {
    (1..=last)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect()
}

fn end_of(client: &mut Client, stdin: Option<&[u8]>) -> (ExecEnd, Heard) {
    let (end, heard) = client.follow::<ExecEnd>(stdin);
    (end.expect("ends"), heard)
}

/// A live reader gets every byte, over several segments; a later one gets the rest from its offset.
#[test]
fn output_is_exact() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let expected = numbers(1_500_000);
    let spec = exec_spec(&sandbox, &["seq", "1", "1500000"]);
    client.start(&spec, Mode::Stream);
    let (end, heard) = end_of(&mut client, None);
    assert_eq!(end.stdout_total, expected.len() as u64);
    assert!(heard.bytes[1] == expected);
    client.attach(&spec, Mode::Stream, expected.len() as u64 - 8);
    assert_eq!(end_of(&mut client, None).1.stdout(), "1500000\n");
    node.down();
}

/// `collect` cuts out the middle; what is beyond the kept 64 MiB is a gap with exact borders.
#[test]
fn much_output_is_cut_in_the_middle() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let mut spec = exec_spec(&sandbox, &["seq", "1", "20000"]);
    spec.max_output_bytes = 1000;
    let heard = client.exec(&spec).1;
    let all = numbers(20_000);
    assert_eq!(
        heard.bytes[1],
        [&all[..500], &all[all.len() - 500..]].concat()
    );

    let spec = exec_spec(&sandbox, &["head", "-c", "100000000", "/dev/zero"]);
    client.start(&spec, Mode::Detach);
    client
        .follow::<serde_json::Value>(None)
        .0
        .expect("has begun");
    client.attach(&spec, Mode::Collect, 0);
    end_of(&mut client, None);
    client.attach(&spec, Mode::Stream, 0);
    let (end, heard) = end_of(&mut client, None);
    let gaps: Vec<_> = heard.items.iter().filter(|item| item["gap"] == 1).collect();
    assert_eq!(gaps.len(), 1);
    let missing = gaps[0]["to"].as_u64().expect("to") - gaps[0]["from"].as_u64().expect("from");
    assert_eq!(end.stdout_total, 100_000_000);
    assert_eq!(heard.bytes[1].len() as u64 + missing, 100_000_000);
    node.down();
}

/// With backpressure nothing is ever dropped, however much is written before anybody reads.
#[test]
fn backpressure_drops_nothing() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let mut spec = exec_spec(&sandbox, &["head", "-c", "100000000", "/dev/zero"]);
    spec.backpressure = true;
    client.start(&spec, Mode::Detach);
    client
        .follow::<serde_json::Value>(None)
        .0
        .expect("has begun");
    client.attach(&spec, Mode::Stream, 0);
    let (_, heard) = end_of(&mut client, None);
    assert_eq!(heard.bytes[1].len(), 100_000_000);
    node.down();
}

/// Standard input arrives whole and in order, repeated frames count once, and its end is its end.
#[test]
fn stdin_is_exact() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let mut spec = exec_spec(&sandbox, &["cat"]);
    spec.stdin = true;
    let bytes = numbers(100_000);
    client.start(&spec, Mode::Stream);
    let (end, heard) = end_of(&mut client, Some(&bytes));
    assert_eq!(end.exit_code, Some(0));
    assert!(heard.bytes[1] == bytes);

    let mut spec = exec_spec(&sandbox, &["cat"]);
    spec.stdin = true;
    client.start(&spec, Mode::Stream);
    while !matches!(client.hear().expect("answers"), Said::Until(_)) {}
    for (offset, part) in [(0, "ab"), (0, "ab"), (1, "bc"), (3, "")] {
        client.data(offset, part.as_bytes());
    }
    assert_eq!(end_of(&mut client, None).1.stdout(), "abc");
    node.down();
}

/// A process in the background does not hold up the result; what it writes later is kept, also after the end was acknowledged.
#[test]
fn background_output_is_recorded() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let (end, heard) = client.sh(
        &sandbox,
        "mkfifo /go; (read x < /go; echo late) & echo early",
    );
    assert_eq!(heard.stdout(), "early\n");
    let _: Empty = client
        .call("exec.ack", &serde_json::json!({"exec_ids": [end.exec_id]}))
        .expect("acknowledged");
    client.sh(&sandbox, "echo go > /go");
    client.stop(&sandbox);
    let tail = OutputTail {
        sandbox_id: sandbox.clone(),
        exec_id: end.exec_id,
        bytes: 100,
    };
    client.open("output.tail", &tail);
    let (_, heard): (Result<Empty, WireError>, _) = client.follow(None);
    assert_eq!(heard.stdout(), "early\nlate\n");
    node.down();
}
