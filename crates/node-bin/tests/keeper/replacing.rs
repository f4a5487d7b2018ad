//! The exec in place: nothing that the keeper holds is lost.

use dsec_proto::keeper::{Answer, Call, Service};
use dsec_session::plan::{FileOp, FileReport};
use serde_json::json;
use std::os::fd::AsFd;

use super::client::{Answered, Client};
use super::node::{directory, Node};
use super::plans::{copy, file_op, host, inside, pipe, read_all, root, sandbox};
use super::services::{service, states};

pub fn replace(control: &mut Client, program: Option<&str>) -> Answered {
    let definition = program.map(|program| {
        let service = json!({"name": "keeper", "argv": [program], "env": [], "log": "", "listen": [], "cgroups": []});
        Box::new(serde_json::from_value::<Service>(service).expect("a service"))
    });
    control.call(Call::Restart {
        service: "keeper".to_owned(),
        definition,
    })
}

fn keeper_pid(answer: Answered) -> i32 {
    match answer {
        Ok(Answer::Hello { pid, .. }) => pid,
        other => panic!("{other:?}"),
    }
}

/// Objects, descriptors, tags, connections, services, sockets and unread ends are the same afterwards.
#[test]
fn keeps_everything() {
    let dir = directory();
    let listen = json!([{"tcp": {"host": "127.0.0.1", "port": 0}}]);
    let node = Node::with_services(
        dir.clone(),
        json!([service(&dir, "a", "exec sleep 1000", listen)]),
    );
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (reader, writer) = pipe();
    let (input, input_end) = pipe();
    let cat = inside("init", &["cat"], &[(0, 1), (1, 0)], 0);
    runtime
        .spawn_holding(
            "cat",
            cat,
            &[writer, input, copy(&input_end), copy(&reader)],
            &[2, 3, 3],
        )
        .expect("spawned");
    runtime
        .spawn("done", host(&["sh", "-c", "exit 9"], &[]), &[])
        .expect("spawned");
    runtime.ended("done");
    let kept = Call::Put {
        object_id: "kept".to_owned(),
        tag: vec![7],
        held: vec![0],
    };
    let asked = runtime.ask(kept, &[input_end.as_fd()]);
    runtime.reply(asked).0.expect("kept");
    let objects = runtime.list();
    let mut control = node.control();
    let before = states(&mut control);
    let mut probe = Client::dial(&node.socket());
    let pid = keeper_pid(probe.hello("control"));

    replace(&mut control, None).expect("replaced");

    assert_eq!(
        runtime.list(),
        objects,
        "the runtime's own connection goes on"
    );
    assert_eq!(states(&mut control), before);
    assert_eq!(
        keeper_pid(Client::dial(&node.socket()).hello("control")),
        pid
    );
    drop(input_end);
    runtime.ack("kept").expect("forgotten");
    let (answer, mut fds) = runtime.fetch("cat");
    assert_eq!((answer, fds.len()), (Ok(Answer::Done), 3));
    drop(fds.split_off(1));
    rustix::io::write(&fds[0], b"still here").expect("written");
    drop(fds);
    runtime
        .signal("cat", libc::SIGTERM, false)
        .expect("signalled");
    assert_eq!(runtime.ended("cat").signal, Some(libc::SIGTERM));
    runtime.ack("cat").expect("forgotten");
    drop(read_all(reader));
    runtime
        .spawn("new", inside("init", &["true"], &[], 0), &[])
        .expect("the sandbox can be entered");
    assert_eq!(runtime.ended("new").exit_code, Some(0));
    runtime
        .signal("init", libc::SIGKILL, false)
        .expect("killed");
    assert_eq!(runtime.ended("init").signal, Some(libc::SIGKILL));
}

/// A file operation under way reports to the new program.
#[test]
fn keeps_file_operations() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (reader, writer) = pipe();
    let op = FileOp::Write {
        path: b"/root/x".to_vec(),
        mode: None,
        parents: false,
        length: 4,
        input: 0,
    };
    runtime
        .spawn("op", file_op("init", op, 0), &[reader])
        .expect("begun");
    replace(&mut node.control(), None).expect("replaced");
    rustix::io::write(&writer, b"four").expect("written");
    let report = runtime.ended("op").report.expect("a report");
    let report: FileReport = rmp_serde::from_slice(&report).expect("decodes");
    assert_eq!((report.errno, report.bytes), (0, 4));
}

/// A program that is no keeper, or none at all, does not take over, and nothing is lost.
#[test]
fn refuses_a_bad_program() {
    let node = Node::start();
    let mut runtime = node.runtime();
    runtime
        .spawn("a", host(&["sleep", "1000"], &[]), &[])
        .expect("spawned");
    let mut control = node.control();
    for program in ["/bin/false", "/no/such/keeper"] {
        assert_eq!(
            replace(&mut control, Some(program))
                .expect_err("refused")
                .code,
            "failed"
        );
    }
    runtime.signal("a", libc::SIGKILL, false).expect("killed");
    assert_eq!(runtime.ended("a").signal, Some(libc::SIGKILL));
}
