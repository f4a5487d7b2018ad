//! The host's mounts: seen by what runs on the host, copied for nobody.

use std::os::fd::OwnedFd;
use std::path::Path;

use dsec_session::plan::{Clone3, End, Exec, Namespace, Plan};
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use serde_json::json;

use super::client::Client;
use super::node::{directory, Node};
use super::plans::{exec, host, pipe, read_all, root, sandbox, BUSYBOX};
use super::services::{service, until};

/// Mounts that the sandboxes have nothing to do with.
const MANY: usize = 1_000;

/// A keeper in a mount namespace of its own with [`MANY`] mounts below `dir/many`.
fn beside_many_mounts(dir: &Path, services: serde_json::Value) -> Node {
    let many = dir.join("many");
    std::fs::create_dir(&many).expect("made");
    Node::prepared(dir.to_owned(), services, move || {
        // SAFETY: this is the forked child, which is single-threaded.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private)?;
        for _ in 0..MANY {
            mount("none", &many, "tmpfs", MountFlags::empty(), None)?;
        }
        Ok(())
    })
}

/// What a program writes that is the file itself, so that it needs no root file system.
fn output(runtime: &mut Client, clone: Clone3, argv: &[&str]) -> String {
    let (reader, writer) = pipe();
    let busybox: OwnedFd = std::fs::File::open(BUSYBOX).expect("opened").into();
    let program = Exec {
        programs: vec![],
        file: Some(1),
        // The new namespace has no /dev/null.
        fds: vec![(0, 0), (0, 1), (0, 2)],
        ..exec(argv, &[])
    };
    let plan = Plan {
        clone,
        steps: vec![],
        end: End::Exec(program),
    };
    runtime
        .spawn("show", plan, &[writer, busybox])
        .expect("spawned");
    let seen = read_all(reader);
    runtime.ended("show");
    runtime.ack("show").expect("acknowledged");
    seen
}

/// A child with a mount namespace of its own starts with two mounts, however many the host has; a child
/// without one, a tool say, and a service see all of the host's.
#[test]
fn mounts_of_the_host_are_not_copied() {
    let dir = directory();
    let count = service(
        &dir,
        "a",
        "wc -l < /proc/self/mountinfo > $OUT; exec sleep 1000",
        json!([]),
    );
    let node = beside_many_mounts(&dir, json!([count]));
    let mut runtime = node.runtime();
    let show = ["cat", "/proc/self/mountinfo"];
    let own = Clone3 {
        new: vec![Namespace::Mount],
        ..Clone3::default()
    };
    let seen = output(&mut runtime, own, &show);
    let targets: Vec<&str> = seen
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .collect();
    assert_eq!(targets, ["/", "/proc"]);
    assert!(
        output(&mut runtime, Clone3::default(), &show)
            .lines()
            .count()
            > MANY
    );
    let of_service = until("the count", || {
        std::fs::read_to_string(dir.join("a"))
            .ok()?
            .trim()
            .parse::<usize>()
            .ok()
    });
    assert!(of_service > MANY, "{of_service}");
}

/// The root that a new mount namespace starts with holds /proc alone and takes nothing: what one child did to
/// it another would see.
#[test]
fn the_empty_root_stays_empty() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let own = || Clone3 {
        new: vec![Namespace::Mount],
        ..Clone3::default()
    };
    assert_eq!(output(&mut runtime, own(), &["ls", "-A", "/"]), "proc\n");
    let refused = output(&mut runtime, own(), &["mkdir", "/x"]);
    assert!(refused.contains("Read-only file system"), "{refused}");
}

/// After a sandbox is made the keeper is where it was: its directory is the same, and what an operator
/// mounts later is seen by what it starts later.
#[test]
fn the_keeper_comes_back() {
    let dir = directory();
    let node = beside_many_mounts(&dir, json!([]));
    let mut runtime = node.runtime();
    let before = output(&mut runtime, Clone3::default(), &["pwd", "-P"]);
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    assert_eq!(
        output(&mut runtime, Clone3::default(), &["pwd", "-P"]),
        before
    );
    let many = dir.join("many").display().to_string();
    let script = format!("mount -t tmpfs later {many} && echo seen > {many}/later");
    runtime
        .spawn("operator", host(&["sh", "-c", &script], &[]), &[])
        .expect("spawned");
    assert_eq!(runtime.ended("operator").exit_code, Some(0));
    let later = format!("{many}/later");
    assert_eq!(
        output(&mut runtime, Clone3::default(), &["cat", &later]),
        "seen\n"
    );
}
