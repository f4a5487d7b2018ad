//! Sandboxes: made, entered, left.

use super::node::Node;
use super::plans::{inside, pipe, read_all, root, sandbox};

/// A sandbox starts, and a program in it sees its root, its name, its processes and its own IDs.
#[test]
fn enters_a_sandbox() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (reader, writer) = pipe();
    let script = "hostname; id; ls /; ls /dev; cat /proc/1/comm; ps; mount; cat /proc/self/status | grep Cap";
    let plan = inside("init", &["sh", "-c", script], &[(0, 1), (0, 2)], 0);
    runtime.spawn("exec", plan, &[writer]).expect("spawned");
    let seen = read_all(reader);
    println!("{seen}");
    assert_eq!(runtime.ended("exec").exit_code, Some(0));
    runtime
        .signal("init", libc::SIGKILL, false)
        .expect("killed");
    assert_eq!(runtime.ended("init").signal, Some(libc::SIGKILL));
}
