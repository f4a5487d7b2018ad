//! Programs on the host: what starts, what fails, and how it is told.

use std::os::fd::OwnedFd;

use dsec_proto::keeper::{Answer, Refusal};
use dsec_session::plan::{End, Exec, Failure, Step};
use rustix::io::Errno;

use super::node::Node;
use super::plans::{bytes, exec, full_pipe, host, pipe, read_all};

/// A program runs with just the descriptors given, and its end is told with its exit code.
#[test]
fn runs_a_program() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let script = "echo hello; ls /proc/self/fd | tr '\\n' ' '; exit 7";
    let plan = host(&["sh", "-c", script], &[(0, 1)]);
    runtime.spawn("a", plan, &[writer]).expect("spawned");
    // 3 is the directory that ls reads.
    assert_eq!(read_all(reader), "hello\n0 1 2 3 ");
    let end = runtime.ended("a");
    assert_eq!((end.exit_code, end.signal), (Some(7), None));
}

/// Descriptors come out right even when their numbers are exchanged.
#[test]
fn places_descriptors() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (one, one_in) = pipe();
    let (two, two_in) = pipe();
    let script = "echo to-three >&3; echo to-nine >&9; ls /proc/self/fd | tr '\\n' ' ' >&9";
    let plan = host(&["sh", "-c", script], &[(0, 9), (1, 3)]);
    runtime
        .spawn("a", plan, &[one_in, two_in])
        .expect("spawned");
    assert_eq!(read_all(two), "to-three\n");
    assert!(read_all(one).starts_with("to-nine\n0 1 2 3 "));
}

/// Nothing of the keeper's signal handling is inherited.
#[test]
fn resets_signals() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let plan = host(
        &["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"],
        &[(0, 1)],
    );
    runtime.spawn("a", plan, &[writer]).expect("spawned");
    assert_eq!(
        read_all(reader),
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
    );
}

fn failure_of(result: Result<Answer, Refusal>) -> Failure {
    let refusal = result.expect_err("a failure");
    assert_eq!(refusal.code, "failed", "{refusal:?}");
    refusal.failure.expect("the step")
}

/// What cannot be executed is told as it is: missing, not permitted, no program, too long.
#[test]
fn tells_why_a_program_does_not_run() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let text = node.dir.join("text");
    std::fs::write(&text, "no program").expect("written");
    let plain = text.to_str().expect("text").to_owned();
    let script = node.dir.join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    let chmod = |path: &std::path::Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("executable");
    };
    chmod(&script);
    let mut errno_of = |argv: &[&str]| failure_of(runtime.spawn("a", host(argv, &[]), &[]));
    assert_eq!(
        errno_of(&["no-such-program"]).errno,
        Errno::NOENT.raw_os_error()
    );
    assert_eq!(errno_of(&["/etc"]).errno, Errno::ACCESS.raw_os_error());
    assert_eq!(errno_of(&[&plain]).errno, Errno::ACCESS.raw_os_error());
    let missing = errno_of(&[script.to_str().expect("text")]);
    assert_eq!(missing.errno, Errno::NOENT.raw_os_error());
    assert!(missing.message.contains("interpreter"), "{missing:?}");
    chmod(&text);
    let no_program = errno_of(&[&plain]);
    assert_eq!(
        (no_program.errno, no_program.step.as_str()),
        (Errno::NOEXEC.raw_os_error(), "exec")
    );
    let long = host(&["true", &"x".repeat(200_000)], &[]);
    let too_long = failure_of(runtime.spawn_from_memfd("a", &long, &[], true));
    assert_eq!(too_long.errno, Errno::TOOBIG.raw_os_error());
    assert!(runtime.list().is_empty());
    runtime
        .spawn("a", host(&["true"], &[]), &[])
        .expect("the ID is free again");
}

/// Of several programs the first that exists is run.
#[test]
fn tries_programs_in_order() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let mut plan = host(&["ignored"], &[]);
    plan.end = End::Exec(Exec {
        programs: vec![bytes("/no/bash"), bytes("no-bash"), bytes("sh")],
        argv: vec![bytes("sh"), bytes("-c"), bytes("echo $0")],
        ..exec(&["x"], &[(0, 1)])
    });
    runtime.spawn("a", plan, &[writer]).expect("spawned");
    assert_eq!(read_all(reader), "sh\n");
}

/// A failing step is named, with its errno, and no descriptor stays with the keeper.
#[test]
fn a_failed_spawn_leaves_nothing() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (reader, writer) = pipe();
    let mut plan = host(&["true"], &[(0, 1)]);
    plan.steps.push(Step::Chdir {
        path: b"/no/such/place".to_vec(),
        create: false,
    });
    let failure = failure_of(runtime.spawn_holding("a", plan, &[writer], &[0]));
    assert_eq!(
        (failure.step.as_str(), failure.errno),
        ("chdir", Errno::NOENT.raw_os_error())
    );
    assert_eq!(read_all(reader), "", "nobody holds the pipe any more");
    assert!(runtime.list().is_empty());
}

/// A child killed while it is being set up is a failed spawn, told at once.
#[test]
fn a_child_killed_in_set_up_fails() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let (_reader, writer) = full_pipe();
    let mut plan = host(&["true"], &[]);
    plan.steps.push(Step::JoinCgroups(vec![0]));
    let asked = runtime.ask_spawn("a", plan, &[writer]);
    runtime
        .signal("a", libc::SIGKILL, false)
        .expect("signalled");
    let failure = failure_of(runtime.reply(asked).0);
    assert_eq!(failure.step, "child");
    assert!(runtime.list().is_empty());
}

/// A plan that names what did not come with it, or contradicts itself, is refused before any clone.
#[test]
fn refuses_bad_plans() {
    let node = Node::start();
    let mut runtime = node.runtime();
    let mut code = |change: &dyn Fn(&mut dsec_session::plan::Plan)| {
        let mut plan = host(&["true"], &[]);
        change(&mut plan);
        runtime
            .spawn("a", plan, &[] as &[OwnedFd])
            .expect_err("refused")
            .code
    };
    assert_eq!(
        code(&|plan| plan.steps.push(Step::JoinCgroups(vec![0]))),
        "invalid"
    );
    assert_eq!(
        code(&|plan| plan.clone.new = vec![dsec_session::plan::Namespace::User]),
        "invalid"
    );
    assert_eq!(
        code(&|plan| plan.clone.enter = Some("nobody".to_owned())),
        "unknown_object"
    );
    assert_eq!(
        code(&|plan| plan.end = End::Exec(Exec {
            programs: vec![],
            ..exec(&["x"], &[])
        })),
        "invalid"
    );
}
