//! What the fetcher, which reads what strangers have written, has left; and the holder, which hears the fetcher.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::layer::open;
use super::node::{Node, UID};
use super::readers::Readers;

fn field<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a field").split_whitespace().collect()
}

/// Nobody's user, no groups, no capabilities and none to be had, a filter, no dumps, and nothing of it to be looked into;
/// and with that it fills.
#[test]
fn nothing_left() {
    let mut node = Node::start(30);
    let layer = node.publish(8 << 20);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, 8 << 20)]).are_exact(&layer);
    let process = format!("/proc/{}", node.pid("fetcher"));
    let tasks = fs::read_dir(format!("{process}/task")).expect("threads");
    let tasks: Vec<_> = tasks.flatten().map(|task| task.path()).collect();
    assert!(tasks.len() > 2, "{tasks:?}");
    for task in tasks {
        let status = fs::read_to_string(task.join("status")).expect("a status");
        let uid = UID.to_string();
        assert_eq!(field(&status, "Uid"), [uid.as_str(); 4]);
        assert_eq!(field(&status, "Gid"), [uid.as_str(); 4]);
        assert_eq!(field(&status, "Groups"), [""; 0]);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
        }
        assert_eq!(field(&status, "NoNewPrivs"), ["1"]);
        assert_eq!(field(&status, "Seccomp"), ["2"]);
    }
    let limits = fs::read_to_string(format!("{process}/limits")).expect("limits");
    let cores = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let cores: Vec<_> = cores.expect("a limit").split_whitespace().collect();
    assert_eq!(cores[4..6], ["0", "0"]);
    // What can be dumped belongs to its user.
    let owner = fs::metadata(format!("{process}/environ"))
        .expect("there")
        .uid();
    assert_eq!(owner, 0);
}

/// The holder stays root of root's files, and has no capabilities, none to be had, and a filter, from before it serves;
/// so has its successor, which takes up what it held.
#[test]
fn the_holder_has_files() {
    let mut node = Node::start(30);
    let layer = node.publish(8 << 20);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, 4 << 20)]).are_exact(&layer);
    is_confined(node.pid("holder"));
    node.kill_one("holder");
    node.open(&layer).expect("opened by its successor");
    Readers::start(open(&mount), vec![(4 << 20, 4 << 20)]).are_exact(&layer);
    is_confined(node.pid("holder"));
}

fn is_confined(pid: i32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    assert_eq!(field(&status, "Uid"), ["0"; 4]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), ["1"]);
    assert_eq!(field(&status, "Seccomp"), ["2"]);
}
