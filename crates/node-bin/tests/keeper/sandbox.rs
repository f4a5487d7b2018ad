//! Sandboxes: made, entered, left, and attacked from inside.

use std::os::fd::OwnedFd;
use std::path::Path;

use dsec_session::plan::{Namespace, Plan, Step};
use rustix::thread::{unshare_unsafe, UnshareFlags};

use super::client::Client;
use super::node::Node;
use super::plans::{full_pipe, inside, inside_as, link, pipe, read_all, root, sandbox};

/// A node with one sandbox, `init`.
pub fn with_sandbox(shape: impl FnOnce(&Path)) -> (Node, Client) {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(shape), vec![]);
    runtime.spawn("init", plan, &fds).expect("spawned");
    (node, runtime)
}

/// Run a script as root of the sandbox and return what it wrote.
pub fn script(runtime: &mut Client, text: &str) -> String {
    script_as(runtime, text, 0)
}

pub fn script_as(runtime: &mut Client, text: &str, uid: u32) -> String {
    let (reader, writer) = pipe();
    let plan = inside("init", &["sh", "-c", text], &[(0, 1), (0, 2)], uid);
    runtime.spawn("script", plan, &[writer]).expect("spawned");
    let seen = read_all(reader);
    runtime.ended("script");
    runtime.ack("script").expect("acknowledged");
    seen
}

/// A program in a sandbox sees its root, its name and its processes, and has the IDs it was given.
#[test]
fn enters_a_sandbox() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    assert_eq!(script(&mut runtime, "hostname"), "box\n");
    assert_eq!(
        script(&mut runtime, "ls / | tr '\\n' ' '"),
        "bin dev etc home proc root "
    );
    assert_eq!(
        script(&mut runtime, "id"),
        "uid=0(root) gid=0(root) groups=0(root)\n"
    );
    assert_eq!(script(&mut runtime, "ls /proc | grep -c '^[0-9]'"), "3\n");
    assert_eq!(
        script(&mut runtime, "ls /proc/self/fd | tr '\\n' ' '"),
        "0 1 2 3 "
    );
}

/// Root keeps the capabilities of the plan, anybody else none, and nobody can inherit any.
#[test]
fn capabilities_are_as_planned() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let show =
        "grep -E 'CapInh|CapPrm|CapEff|CapBnd|CapAmb' /proc/self/status | cut -f 2 | tr '\\n' ' '";
    let (none, docker) = ("0000000000000000", "00000000a80425fb");
    assert_eq!(
        script(&mut runtime, show),
        format!("{none} {docker} {docker} {docker} {none} ")
    );
    assert_eq!(
        script_as(&mut runtime, show, 1000),
        format!("{none} {none} {none} {docker} {none} ")
    );
}

/// Masked paths show nothing, read-only ones stay so, and root without CAP_SYS_ADMIN mounts nothing.
#[test]
fn paths_are_protected() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    assert_eq!(
        script(
            &mut runtime,
            "cat /proc/timer_list; ls /proc/acpi /proc/scsi /proc/fs 2>/dev/null | grep -v : | grep ."
        ),
        ""
    );
    let written = script(
        &mut runtime,
        "echo 1 > /proc/sys/kernel/panic || echo refused",
    );
    assert!(written.ends_with("refused\n"), "{written}");
    let mounted = script(
        &mut runtime,
        "mount -o remount,rw /proc/sys || mount -t tmpfs x /home || echo refused",
    );
    assert!(mounted.ends_with("refused\n"), "{mounted}");
    assert_eq!(
        script(&mut runtime, "mount | grep -c -E '/dev/(mqueue|shm|pts)'"),
        "3\n"
    );
}

/// The kernel ends everything in a sandbox with its init; entering what is gone says so.
#[test]
fn dies_with_its_init() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    runtime
        .spawn("sleeper", inside("init", &["sleep", "1000"], &[], 0), &[])
        .expect("spawned");
    runtime
        .signal("init", libc::SIGKILL, false)
        .expect("killed");
    assert_eq!(runtime.ended("sleeper").signal, Some(libc::SIGKILL));
    assert_eq!(runtime.ended("init").signal, Some(libc::SIGKILL));
    let refused = runtime.spawn("late", inside("init", &["true"], &[], 0), &[]);
    assert_eq!(refused.expect_err("refused").code, "gone");
}

/// A child that is being set up when its sandbox is killed is `gone`, and leaves nothing.
#[test]
fn a_stop_amid_set_up_is_told() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let (_reader, writer) = full_pipe();
    let mut plan = inside("init", &["true"], &[], 0);
    plan.steps.push(Step::JoinCgroups(vec![0]));
    let asked = runtime.ask_spawn("caught", plan, &[writer]);
    runtime
        .signal("init", libc::SIGKILL, false)
        .expect("killed");
    assert_eq!(runtime.reply(asked).0.expect_err("failed").code, "gone");
    runtime.ended("init");
    assert_eq!(runtime.list().len(), 1);
}

/// Signals from inside do not reach init, which reaps what others leave behind.
#[test]
fn init_is_deaf_and_reaps() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    script(
        &mut runtime,
        "kill -9 1; kill -TERM 1; kill -CHLD 1; (sleep 0 &); (sleep 0 &)",
    );
    assert_eq!(script(&mut runtime, "echo alive"), "alive\n");
    let adopt = "(sleep 0.1 & echo $! > /home/pid)";
    script(&mut runtime, adopt);
    let wait = "pid=$(cat /home/pid); tries=0; \
        while [ -e /proc/$pid ] && [ $tries -lt 1000000 ]; do tries=$((tries + 1)); done; \
        [ -e /proc/$pid ] || echo reaped";
    assert_eq!(script(&mut runtime, wait), "reaped\n");
}

/// Users by name: IDs, groups and home from the sandbox's files, and the pipes are theirs to open again.
#[test]
fn resolves_users() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let (reader, writer) = pipe();
    let text = "id -u; id -G; echo $HOME; echo again > /proc/self/fd/1";
    let plan = inside_as("init", &["sh", "-c", text], &[(0, 1), (0, 2)], "app", &[0]);
    runtime.spawn("app", plan, &[writer]).expect("spawned");
    assert_eq!(read_all(reader), "1000\n1001 50\n/home\nagain\n");
    let refused = runtime.spawn("x", inside_as("init", &["true"], &[], "stranger", &[]), &[]);
    let failure = refused.expect_err("refused").failure.expect("the step");
    assert_eq!((failure.step.as_str(), failure.errno), ("resolve_user", 0));
    assert!(failure.message.contains("stranger"));
}

fn resolving_fails(shape: impl FnOnce(&Path)) -> String {
    let (_node, mut runtime) = with_sandbox(shape);
    let refused = runtime.spawn("x", inside_as("init", &["true"], &[], "app", &[]), &[]);
    let failure = refused.expect_err("refused").failure.expect("the step");
    assert_eq!(failure.step, "resolve_user");
    failure.message
}

/// A passwd file that is a FIFO, a link to the helper's own files, or huge, is refused and hangs nobody.
#[test]
fn hostile_passwd_files() {
    let replace = |path: &Path| {
        let file = path.join("etc/passwd");
        std::fs::remove_file(&file).expect("removed");
        file
    };
    let fifo = resolving_fails(|path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let file = replace(path);
        rustix::fs::mknodat(rustix::fs::CWD, file, rustix::fs::FileType::Fifo, mode, 0)
            .expect("made");
    });
    assert!(fifo.contains("not a regular file"), "{fifo}");
    let magic = resolving_fails(|path| link("/proc/self/exe", &replace(path)));
    assert!(magic.contains("open"), "{magic}");
    let huge = resolving_fails(|path| {
        std::fs::File::create(replace(path))
            .and_then(|file| file.set_len(1 << 30))
            .expect("made");
    });
    assert!(huge.contains("longer"), "{huge}");
}

/// What keeps an init with this root from its start.
fn refused(shape: impl FnOnce(&Path)) -> (String, i32) {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (plan, fds) = sandbox(root(shape), vec![]);
    let refusal = runtime.spawn("init", plan, &fds).expect_err("refused");
    let failure = refusal.failure.expect("the step");
    (failure.step, failure.errno)
}

/// A link in the place of a directory that is mounted on is refused, wherever it leads, and nothing is made there.
#[test]
fn links_at_targets_are_refused() {
    let outside = super::node::directory();
    let victim = outside.join("victim");
    std::fs::create_dir(&victim).expect("made");
    let up = format!("/../../../../../..{}", victim.display());
    for (place, to) in [
        ("dev", up.as_str()),
        ("proc", "/nowhere/at/all"),
        ("proc", "/"),
    ] {
        let failure = refused(|path| link(to, &path.join(place)));
        assert_eq!(failure, ("mount_tree".into(), libc::ELOOP), "{place} {to}");
    }
    assert!(std::fs::read_dir(&victim).expect("read").next().is_none());
    std::fs::remove_dir_all(outside).expect("removed");
}

/// Neither magic links as program nor as working directory lead to the helper's own files.
#[test]
fn magic_links_lead_nowhere() {
    let (_node, mut runtime) = with_sandbox(|path| link("/proc/self/exe", &path.join("bin/self")));
    for program in ["/proc/self/exe", "/bin/self", "self"] {
        let refused = runtime.spawn("x", inside("init", &[program], &[], 0), &[]);
        assert_eq!(
            refused
                .expect_err("refused")
                .failure
                .expect("the step")
                .step,
            "exec"
        );
    }
    for path in ["/proc/self/cwd", "/proc/self/fd/0", "/proc/1/root"] {
        let mut plan = inside("init", &["true"], &[], 0);
        plan.steps.push(Step::Chdir {
            path: path.into(),
            create: false,
        });
        let refused = runtime.spawn("x", plan, &[]).expect_err("refused");
        assert_eq!(refused.failure.expect("the step").step, "chdir");
    }
}

/// Root inside with every capability can read neither a helper that has just entered, nor init.
#[test]
fn helpers_cannot_be_read() {
    let (_node, mut runtime) = with_sandbox(|_| ());
    let (reader, writer) = full_pipe();
    let mut helper = inside("init", &["true"], &[], 0);
    // Entered, still root in all, and waiting.
    helper.steps.insert(2, Step::JoinCgroups(vec![0]));
    let asked = runtime.ask_spawn("helper", helper, &[writer]);
    let (output, end) = pipe();
    let attack = "mkdir /home/p; mount -t proc p /home/p; cd /home/p; for pid in [0-9]*; do \
        [ $pid = $$ ] && continue; echo \"pid $pid\"; for name in exe cwd root fd/0 fd/3; do \
        readlink $pid/$name && echo leak; done; cat $pid/maps $pid/environ $pid/mem && echo leak; ls $pid/fd && echo leak; \
        done 2>/dev/null";
    let mut plan = inside("init", &["sh", "-c", attack], &[(0, 1)], 0);
    for step in &mut plan.steps {
        if let Step::Caps { keep } = step {
            *keep = u64::MAX;
        }
    }
    runtime.spawn("attacker", plan, &[end]).expect("spawned");
    let seen = read_all(output);
    assert!(
        seen.contains("pid 1\n") && seen.matches("pid ").count() >= 2,
        "{seen}"
    );
    assert!(!seen.contains("leak"), "{seen}");
    drop(reader);
    assert!(runtime.reply(asked).0.is_err());
}

/// A sandbox is born in the network namespace given, and has no rights in it.
#[test]
fn joins_a_network_namespace() {
    // SAFETY: a thread of its own, which ends with its namespace's descriptor open.
    let net: OwnedFd = std::thread::spawn(|| unsafe {
        unshare_unsafe(UnshareFlags::NEWNET).expect("a namespace");
        std::fs::File::open("/proc/thread-self/ns/net")
            .expect("opened")
            .into()
    })
    .join()
    .expect("joined");
    let inode = rustix::fs::fstat(&net).expect("looked").st_ino;
    let node = Node::start();
    let mut runtime = node.runtime();
    let (mut plan, mut fds): (Plan, Vec<OwnedFd>) = sandbox(root(|_| ()), vec![]);
    plan.clone.net = Some(3);
    fds.push(net);
    runtime.spawn("init", plan, &fds).expect("spawned");
    let (reader, writer) = pipe();
    let text = "readlink /proc/self/ns/net; cat /proc/sys/net/ipv4/ip_forward";
    let mut plan = inside("init", &["sh", "-c", text], &[(0, 1)], 0);
    if let Step::Enter { kinds, .. } = &mut plan.steps[1] {
        kinds.push(Namespace::Net);
    }
    runtime.spawn("exec", plan, &[writer]).expect("spawned");
    assert!(read_all(reader).starts_with(&format!("net:[{inode}]\n")));
}
