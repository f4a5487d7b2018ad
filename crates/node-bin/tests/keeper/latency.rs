//! How long a spawn takes, from the request to the answer. Prints; promises nothing:
//! `cargo test --release -p dsec-node-bin --test keeper -- --ignored --nocapture latency`.

use std::time::{Duration, Instant};

use super::client::Client;
use super::node::Node;
use super::plans::{inside, pipe, root, sandbox};
use dsec_proto::keeper::Call;
use std::os::fd::AsFd;

const ROUNDS: usize = 200;

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[times.len() * part / 100].as_micros();
    println!(
        "{what}: p50 {} us, p90 {} us, p99 {} us",
        at(50),
        at(90),
        at(99)
    );
}

fn end(runtime: &mut Client, object_id: &str) {
    runtime.ended(object_id);
    runtime.ack(object_id).expect("acknowledged");
}

/// Times of a sandbox's init, of `true` entered into it, and of that until its end.
#[test]
#[ignore = "a measurement, not a check"]
fn latency_of_spawns() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let mut inits = Vec::new();
    for _ in 0..ROUNDS {
        let (plan, fds) = sandbox(root(|_| ()), vec![]);
        let start = Instant::now();
        runtime.spawn("init", plan, &fds).expect("spawned");
        inits.push(start.elapsed());
        runtime
            .signal("init", libc::SIGKILL, false)
            .expect("killed");
        end(&mut runtime, "init");
    }
    show("init", inits);
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (mut execs, mut wholes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let plan = inside("init", &["/bin/true"], &[], 1000);
        let start = Instant::now();
        runtime.spawn("exec", plan, &[]).expect("spawned");
        execs.push(start.elapsed());
        runtime.ended("exec");
        wholes.push(start.elapsed());
        runtime.ack("exec").expect("acknowledged");
    }
    show("exec until executed", execs);
    show("exec of true until ended", wholes);
}

/// The same exec while the keeper holds the descriptors of thousands of others.
#[test]
#[ignore = "a measurement, not a check"]
fn latency_beside_many_descriptors() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (reader, _writer) = pipe();
    for held in [0, 3_000, 6_000, 9_000, 12_000, 15_000] {
        for number in (0..held).step_by(60) {
            let call = Call::Put {
                object_id: format!("p{number}"),
                tag: vec![],
                held: (0..60).collect(),
            };
            let id = runtime.ask(call, &[reader.as_fd(); 60]);
            runtime.reply(id).0.expect("kept");
        }
        let mut wholes = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            runtime
                .spawn("exec", inside("init", &["/bin/true"], &[], 1000), &[])
                .expect("spawned");
            runtime.ended("exec");
            wholes.push(start.elapsed());
            runtime.ack("exec").expect("acknowledged");
        }
        show(&format!("exec of true beside {held} descriptors"), wholes);
    }
}
