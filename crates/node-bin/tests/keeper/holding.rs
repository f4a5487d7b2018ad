//! What the keeper remembers for a runtime: objects, tags, descriptors, ends.

use dsec_proto::keeper::{Answer, Call, Request};
use dsec_session::plan::Step;
use std::os::fd::AsFd;

use super::client::Client;
use super::node::Node;
use super::plans::{copy, full_pipe, host, pipe, read_all};

fn code(answer: Result<Answer, dsec_proto::keeper::Refusal>) -> String {
    answer.expect_err("refused").code
}

/// A known ID answers with the object that exists, alive or ended, until it is acknowledged.
#[test]
fn an_object_is_made_once() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let plan = host(&["cat"], &[(0, 0)]);
    let Ok(Answer::Spawned {
        pid,
        existing: false,
        ..
    }) = runtime.spawn("a", plan.clone(), &[reader])
    else {
        panic!("not spawned");
    };
    let again = runtime.spawn("a", plan.clone(), &[copy(&writer)]);
    assert!(matches!(again, Ok(Answer::Spawned { pid: same, existing: true, .. }) if same == pid));
    assert_eq!(code(runtime.ack("a")), "not_ended");
    drop(writer);
    assert_eq!(runtime.ended("a").exit_code, Some(0));
    let again = runtime.spawn("a", plan, &[pipe().0]);
    assert!(matches!(again, Ok(Answer::Spawned { pid: same, existing: true, .. }) if same == pid));
    runtime.ack("a").expect("acknowledged");
    runtime
        .ack("a")
        .expect("a repeated acknowledgement is harmless");
    assert!(runtime.list().is_empty());
}

/// A runtime that comes back finds processes, ends, tags and descriptors.
#[test]
fn a_new_runtime_finds_everything() {
    let node = Node::start();
    let mut first = node.runtime();
    let (reader, writer) = pipe();
    let plan = host(&["sh", "-c", "echo kept; exec cat"], &[(0, 1), (1, 0)]);
    let (input, input_end) = pipe();
    first
        .spawn_holding(
            "lives",
            plan,
            &[writer, input, copy(&reader), copy(&input_end)],
            &[2, 3],
        )
        .expect("spawned");
    drop((reader, input_end));
    first
        .spawn("ends", host(&["sh", "-c", "exit 3"], &[]), &[])
        .expect("spawned");
    first.ended("ends");
    let tag = vec![0xff; 4096];
    first
        .call(Call::Retag {
            object_id: "ends".to_owned(),
            tag: tag.clone(),
        })
        .expect("tagged");
    drop(first);
    let mut second = node.runtime();
    let objects = second.list();
    let names: Vec<&str> = objects
        .iter()
        .map(|object| object.object_id.as_str())
        .collect();
    assert_eq!(names, ["ends", "lives"]);
    assert_eq!(objects[0].tag, tag);
    assert_eq!(
        objects[0].ended.as_ref().and_then(|end| end.exit_code),
        Some(3)
    );
    assert_eq!(objects[1].ended, None);
    let (answer, mut fds) = second.fetch("lives");
    assert_eq!((answer, fds.len()), (Ok(Answer::Done), 2));
    drop(fds.pop());
    second
        .signal("lives", libc::SIGTERM, true)
        .expect("signalled");
    assert_eq!(second.ended("lives").signal, Some(libc::SIGTERM));
    assert_eq!(code(second.signal("lives", libc::SIGTERM, false)), "ended");
    let output = fds.pop().expect("the output");
    second.ack("lives").expect("acknowledged");
    assert_eq!(read_all(output), "kept\n");
}

/// Descriptors can be kept without a process, and replaced.
#[test]
fn keeps_descriptors() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let put = |runtime: &mut Client, fds: &[&dyn AsFd], held: Vec<u16>| {
        let call = Call::Put {
            object_id: "layers".to_owned(),
            tag: vec![1],
            held,
        };
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let id = runtime.ask(call, &fds);
        runtime.reply(id).0
    };
    let (reader, writer) = pipe();
    put(&mut runtime, &[&writer], vec![0]).expect("kept");
    drop(writer);
    assert_eq!(runtime.fetch("layers").1.len(), 1);
    assert_eq!(
        code(runtime.signal("layers", libc::SIGTERM, false)),
        "ended"
    );
    put(&mut runtime, &[], vec![]).expect("replaced");
    assert_eq!(read_all(reader), "");
    assert_eq!(code(put(&mut runtime, &[], vec![4])), "invalid");
    runtime.ack("layers").expect("forgotten");
    assert_eq!(code(runtime.fetch("layers").0), "unknown_object");
}

/// A spawn that fails after its asker has gone is found in the list, with the step.
#[test]
fn a_failure_without_an_asker_is_kept() {
    let node = Node::start();
    let mut first = node.runtime();
    let (reader, writer) = full_pipe();
    let mut plan = host(&["no-such-program"], &[]);
    plan.steps.push(Step::JoinCgroups(vec![0]));
    first.ask_spawn("a", plan, &[writer]);
    assert_eq!(first.list().len(), 1);
    drop(first);
    let mut second = node.runtime();
    assert_eq!(second.list()[0].ended, None);
    drop(reader);
    let end = second.ended("a");
    assert_eq!((end.exit_code, end.signal), (None, None));
    assert_eq!(end.failure.expect("the step").step, "join_cgroups");
    second.ack("a").expect("acknowledged");
}

/// One runtime at a time; a command line beside it may look, not spawn.
#[test]
fn one_runtime_at_a_time() {
    let node = Node::start();
    let runtime = node.runtime();
    let mut other = Client::dial(&node.socket());
    assert_eq!(code(other.hello("runtime")), "busy");
    let mut control = node.control();
    assert_eq!(
        code(control.spawn("a", host(&["true"], &[]), &[])),
        "invalid"
    );
    control.call(Call::Services).expect("the table");
    drop(runtime);
    // The keeper hears of the hang-up in its own time.
    while other.hello("runtime").is_err() {}
}

/// Another version, a missing hello and what is no message end a connection, never the keeper.
#[test]
fn bad_peers_are_cut_off() {
    let node = Node::start();
    let mut old = Client::dial(&node.socket());
    let hello = Call::Hello {
        version: 999,
        role: "runtime".to_owned(),
    };
    assert_eq!(code(old.call(hello)), "version");
    let silent = Client::dial(&node.socket());
    let early = Request {
        id: 1,
        call: Call::Services,
    };
    silent.send_raw(&rmp_serde::to_vec_named(&early).expect("encodes"), &[]);
    assert!(silent.receive().is_none());
    for packet in [
        &b"\xc1\xc1"[..],
        &[0x81; 3000],
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
    ] {
        let broken = node.control();
        broken.send_raw(packet, &[]);
        assert!(broken.receive().is_none());
    }
    let long = node.control();
    long.send_raw(&vec![0x80; 65 * 1024], &[]);
    assert!(long.receive().is_none());
    node.runtime()
        .spawn("a", host(&["true"], &[]), &[])
        .expect("the keeper lives");
}

/// A plan too long for a packet comes in a sealed memfd; one that could still change is refused.
#[test]
fn plans_in_a_memfd() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let long = "y".repeat(100_000);
    let (reader, writer) = pipe();
    let plan = host(&["sh", "-c", "echo ${#0}", &long], &[(0, 1)]);
    let fds = [writer];
    assert_eq!(
        code(runtime.spawn_from_memfd("a", &plan, &fds, false)),
        "invalid"
    );
    runtime
        .spawn_from_memfd("a", &plan, &fds, true)
        .expect("spawned");
    drop(fds);
    assert_eq!(read_all(reader), "100000\n");
}
