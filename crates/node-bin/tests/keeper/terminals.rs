//! `OpenPty`: the sandbox's own terminal, its master held by the keeper, through an exec in place too.

use std::os::fd::OwnedFd;

use dsec_session::plan::{End, Plan, Step};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::client::Client;
use super::plans::{inside, pipe};
use super::replacing::replace;
use super::sandbox::with_sandbox;

const ROWS: u16 = 31;
const COLS: u16 = 97;

fn at_terminal(script: &str, uid: u32) -> Plan {
    let mut plan = inside("init", &["sh", "-c", script], &[], uid);
    plan.steps.push(Step::OpenPty {
        rows: ROWS,
        cols: COLS,
    });
    plan
}

fn master_of(runtime: &mut Client, object_id: &str) -> OwnedFd {
    let (answer, mut held) = runtime.fetch(object_id);
    answer.expect("fetched");
    held.pop().expect("the master comes last")
}

/// What the terminal shows, until this is in it or (`None`) nobody has it open any more.
fn shown(master: &OwnedFd, until: Option<&str>) -> String {
    let mut seen = Vec::new();
    let patience = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if until.is_some_and(|until| text.contains(until)) {
            return text;
        }
        let ready = poll(&mut [PollFd::new(master, PollFlags::IN)], Some(&patience));
        assert_eq!(ready, Ok(1), "nothing more than {text:?} is shown");
        let mut part = [0; 4096];
        match rustix::io::read(master, &mut part) {
            Ok(length) => seen.extend(&part[..length]),
            Err(Errno::IO) => return text,
            Err(Errno::AGAIN) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// All three descriptors are the sandbox's first terminal, which belongs to the user and has the size; the master is held
/// after what else the object holds, and what was shown last is still there once the program has ended.
#[test]
fn a_terminal_of_its_own() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let script = "tty; test -t 0 && test -t 1 && test -t 2 && echo all; stty size; ls -ln $(tty) | tr -s ' ' | cut -d ' ' -f 1,3; exit 3";
    let (other, _writer) = pipe();
    runtime
        .spawn_holding("term", at_terminal(script, 1000), &[other], &[0])
        .expect("spawned");
    assert_eq!(runtime.ended("term").exit_code, Some(3));
    let (answer, held) = runtime.fetch("term");
    answer.expect("fetched");
    assert_eq!(held.len(), 2);
    assert_eq!(
        shown(&held[1], None),
        "/dev/pts/0\r\nall\r\n31 97\r\ncrw--w---- 1000\r\n"
    );
    runtime.ack("term").expect("acknowledged");
}

/// It is the controlling terminal: what is typed arrives, and Ctrl-C ends what is in front.
#[test]
fn what_is_typed_arrives() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let script = "read line; echo got $line; sleep 1000";
    runtime
        .spawn("term", at_terminal(script, 0), &[])
        .expect("spawned");
    let master = master_of(&mut runtime, "term");
    rustix::io::write(&master, b"word\n").expect("typed");
    assert!(shown(&master, Some("got word\r\n")).starts_with("word\r\n"));
    rustix::io::write(&master, b"\x03").expect("typed");
    assert_eq!(shown(&master, None), "^C");
    assert_eq!(runtime.ended("term").signal, Some(libc::SIGINT));
}

/// The keeper that has replaced itself holds the same master: the program goes on, and nothing shown is lost.
#[test]
fn through_an_exec_in_place() {
    let (node, mut runtime) = with_sandbox(|_| ());
    let script = "stty -echo; echo before; read line; echo got $line; exit 7";
    runtime
        .spawn("term", at_terminal(script, 0), &[])
        .expect("spawned");
    let before = master_of(&mut runtime, "term");
    assert_eq!(shown(&before, Some("before")), "before\r\n");
    drop(before);
    replace(&mut node.control(), None).expect("replaced");
    let master = master_of(&mut runtime, "term");
    rustix::io::write(&master, b"word\n").expect("typed");
    assert_eq!(runtime.ended("term").exit_code, Some(7));
    assert_eq!(shown(&master, None), "got word\r\n");
}

/// A session has one terminal, and a program at one has no other 0, 1 or 2; nothing is spawned of such a plan.
#[test]
fn impossible_ones_are_refused() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let mut twice = at_terminal("true", 0);
    twice.steps.push(Step::OpenPty { rows: 1, cols: 1 });
    let mut piped = at_terminal("true", 0);
    if let End::Exec(exec) = &mut piped.end {
        exec.fds.push((0, 1));
    }
    for plan in [twice, piped] {
        let (_reader, writer) = pipe();
        let refused = runtime.spawn("term", plan, &[writer]).expect_err("refused");
        assert_eq!(refused.code, "invalid");
    }
    let objects = runtime.list();
    assert_eq!(objects.len(), 1, "{objects:?}");
}
