//! Steps that change what a process may do or use: cgroups, seccomp, users, limits.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use dsec_session::plan::Step;
use rustix::fs::{Mode, OFlags};

use super::client::Client;
use super::node::Node;
use super::plans::{host, inside, pipe, read_all, root, sandbox};

/// A cgroup for one test, removed with it.
struct Group(PathBuf);

impl Group {
    fn new(hierarchy: &str, name: &str) -> Self {
        let name = format!("dsec-test/keeper-{}-{name}", std::process::id());
        let path = PathBuf::from("/sys/fs/cgroup").join(hierarchy).join(name);
        std::fs::create_dir_all(&path).expect("this test needs cgroups under /sys/fs/cgroup");
        Self(path)
    }

    fn open(&self, file: &str, flags: OFlags) -> OwnedFd {
        rustix::fs::open(self.0.join(file), flags | OFlags::CLOEXEC, Mode::empty()).expect("opened")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("the group is empty and goes");
    }
}

/// The v2 hierarchy: the root itself, or where a hybrid system has it.
fn unified() -> &'static str {
    if std::path::Path::new("/sys/fs/cgroup/unified").is_dir() {
        "unified"
    } else {
        ""
    }
}

fn output(runtime: &mut Client, plan: dsec_session::plan::Plan, mut fds: Vec<OwnedFd>) -> String {
    let (reader, writer) = pipe();
    fds.insert(0, writer);
    runtime.spawn("a", plan, &fds).expect("spawned");
    drop(fds);
    let seen = read_all(reader);
    runtime.ended("a");
    runtime.ack("a").expect("acknowledged");
    seen
}

/// A sandbox and a program in it are born in their own groups, and see these as the roots of the tree.
#[test]
fn joins_cgroups() {
    let outer = Group::new(unified(), "outer");
    let inner = Group::new(unified(), "inner");
    let node = Node::start();
    let mut runtime = node.runtime();
    let (mut plan, mut fds) = sandbox(root(|_| ()), vec![]);
    plan.clone.cgroup = Some(3);
    plan.steps.insert(1, Step::UnshareCgroup);
    fds.push(outer.open(".", OFlags::RDONLY | OFlags::DIRECTORY));
    runtime.spawn("init", plan, &fds).expect("spawned");
    assert_eq!(
        std::fs::read_to_string(outer.0.join("cgroup.procs"))
            .expect("read")
            .lines()
            .count(),
        1
    );
    let mut plan = inside("init", &["cat", "/proc/self/cgroup"], &[(0, 1)], 0);
    plan.steps.insert(1, Step::JoinCgroups(vec![1]));
    plan.steps.insert(3, Step::UnshareCgroup);
    let seen = output(
        &mut runtime,
        plan,
        vec![inner.open("cgroup.procs", OFlags::WRONLY)],
    );
    assert!(seen.lines().any(|line| line == "0::/"), "{seen}");
    runtime
        .signal("init", libc::SIGKILL, false)
        .expect("killed");
    runtime.ended("init");
}

/// Being born in a group that is gone is a failure of the clone.
#[test]
fn a_removed_cgroup_fails_the_clone() {
    let group = Group::new(unified(), "gone");
    let directory = group.open(".", OFlags::RDONLY | OFlags::DIRECTORY);
    drop(group);
    let node = Node::start();
    let mut plan = host(&["true"], &[]);
    plan.clone.cgroup = Some(0);
    let refused = node
        .runtime()
        .spawn("a", plan, &[directory])
        .expect_err("refused");
    let failure = refused.failure.expect("the step");
    assert_eq!(failure.step, "clone");
    assert_ne!(failure.errno, 0);
}

fn instruction(code: u32, yes: u8, no: u8, value: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&(code as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&[yes, no]);
    bytes[4..].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// A filter is installed while the entrant still may, and holds for the program.
#[test]
fn installs_a_filter() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let refused = libc::SECCOMP_RET_ERRNO | 77;
    let program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_setpriority as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
    .concat();
    let text = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | cut -f 2 | tr '\\n' ' '";
    let mut plan = inside("init", &["sh", "-c", text], &[(0, 1)], 1000);
    plan.steps.insert(
        2,
        Step::Seccomp {
            program,
            listen: false,
        },
    );
    assert_eq!(output(&mut runtime, plan, vec![]), "0 2 ");
}

/// A host user has no capability left and no group of root's; limits are as planned.
#[test]
fn becomes_a_host_user() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let text = "id -u; id -G; ulimit -n; grep -E 'CapPrm|CapEff|NoNewPrivs' /proc/self/status | cut -f 2 | tr '\\n' ' '";
    let mut plan = host(&["sh", "-c", text], &[(0, 1)]);
    plan.steps.extend([
        Step::Rlimits(vec![(libc::RLIMIT_NOFILE, 99, 100)]),
        Step::HostUser {
            uid: 4242,
            gid: 4243,
        },
        Step::NoNewPrivs,
    ]);
    let none = "0000000000000000";
    assert_eq!(
        output(&mut runtime, plan, vec![]),
        format!("4242\n4243\n99\n{none} {none} 1 ")
    );
}

/// A working directory that is missing is made when the plan says so.
#[test]
fn makes_a_working_directory() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(|_| ()), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let mut plan = inside(
        "init",
        &["sh", "-c", "pwd; ls -ldn . | cut -c 1-20"],
        &[(0, 1)],
        0,
    );
    plan.steps.push(Step::Chdir {
        path: b"/work/deep/er".to_vec(),
        create: true,
    });
    assert_eq!(
        output(&mut runtime, plan, vec![]),
        "/work/deep/er\ndrwxr-xr-x    2 0   \n"
    );
}
