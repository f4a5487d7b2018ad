//! Running programs: results, failures, users, kills, and that each runs once.

use dsec_proto::runtime::Mode;

use super::client::exec_spec;
use super::node::Node;

/// Exit codes, signals and both streams are told as they are.
#[test]
fn results_are_true() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let (end, heard) = client.sh(&sandbox, "echo out; echo err >&2; exit 3");
    assert_eq!(
        (end.ended.as_str(), end.exit_code, end.signal),
        ("exited", Some(3), None)
    );
    assert_eq!(
        (heard.stdout(), heard.stderr()),
        ("out\n".into(), "err\n".into())
    );
    assert_eq!((end.stdout_total, end.stderr_total), (4, 4));
    let (end, _) = client.sh(&sandbox, "kill -USR1 $$");
    assert_eq!(
        (end.ended.as_str(), end.exit_code, end.signal),
        ("signalled", None, Some(10))
    );
    node.down();
}

/// What cannot be run is told by its kind and leaves nothing that runs.
#[test]
fn failures_have_their_kind() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let mut fails = |argv: &[&str], cwd: Option<&str>, user: &str| {
        let mut spec = exec_spec(&sandbox, argv);
        spec.cwd = cwd.map(serde_bytes::ByteBuf::from);
        spec.user = user.into();
        let error = client.exec(&spec).0.expect_err("fails");
        (error.code, error.phase.unwrap_or_default())
    };
    let kind = |code: &str, phase: &str| (code.to_owned(), phase.to_owned());
    assert_eq!(
        fails(&["no-such-program"], None, ""),
        kind("executable_not_found", "")
    );
    assert_eq!(
        fails(&["/etc/passwd"], None, ""),
        kind("not_executable", "")
    );
    assert_eq!(
        fails(&["true"], Some("/nowhere"), ""),
        kind("invalid_argument", "cwd")
    );
    assert_eq!(
        fails(&["true"], None, "nobody-here"),
        kind("invalid_argument", "user")
    );
    node.down();
}

/// Names are looked up inside, numbers need not be there; the output can be reopened by whoever it is.
#[test]
fn users_are_taken() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let cases = [
        ("", "uid=0(root) gid=0(root)\n/root\n"),
        (
            "u",
            "uid=1000(u) gid=1000(u) groups=1000(u),2000(extra)\n/home/u\n",
        ),
        ("1000:5", "uid=1000(u) gid=5\n/\n"),
    ];
    for (user, expected) in cases {
        let mut spec = exec_spec(&sandbox, &["sh", "-c", "id > /dev/stdout; echo $HOME"]);
        spec.user = user.into();
        let (end, heard) = client.exec(&spec);
        assert_eq!(heard.stdout(), expected, "{user:?} {}", heard.stderr());
        assert_eq!(end.expect("runs").exit_code, Some(0));
    }
    node.down();
}

/// The same request twice runs the program once and gives the same result.
#[test]
fn runs_once() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let spec = exec_spec(&sandbox, &["sh", "-c", "echo x >> /count; cat /count"]);
    let first = client.exec(&spec);
    let second = client.exec(&spec);
    assert_eq!(first.0, second.0);
    assert_eq!(first.1.items, second.1.items);
    assert_eq!(second.1.stdout(), "x\n");
    assert_eq!(client.sh(&sandbox, "cat /count").1.stdout(), "x\n");
    node.down();
}

/// A timeout ends everything that the exec has started, also what ignores SIGTERM, and says that it was the timeout.
#[test]
fn timeout_ends_all_of_it() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let mut spec = exec_spec(
        &sandbox,
        &["sh", "-c", "trap '' TERM; sleep 77 & sleep 77 & wait"],
    );
    spec.timeout_ms = Some(200);
    let end = client.exec(&spec).0.expect("runs");
    assert_eq!((end.ended.as_str(), end.signal), ("timeout", Some(9)));
    // The timeout counts from the request, the duration from the clone: the grace is certain, not the sum of both.
    assert!(end.duration_ns > 200_000_000, "{}", end.duration_ns);
    let left = client.sh(&sandbox, "ps | grep -c '[s]leep 77'").1.stdout();
    assert_eq!(left, "0\n");
    node.down();
}

/// A kill is confirmed, may come before its exec, and can be a mere signal.
#[test]
fn kills_are_confirmed() {
    let node = Node::start();
    let (mut client, mut other) = (node.client(), node.client());
    let sandbox = node.sandbox(&mut client);
    let spec = exec_spec(&sandbox, &["sleep", "1000"]);
    client.start(&spec, Mode::Stream);
    client.hear().expect("has begun");
    other.kill(&spec, None, 0).expect("is killed");
    let (end, _) = client.follow::<dsec_proto::runtime::ExecEnd>(None);
    assert_eq!(end.expect("ends").ended, "cancelled");

    let early = exec_spec(&sandbox, &["touch", "/ran"]);
    other.kill(&early, None, 0).expect("is remembered");
    assert_eq!(client.exec(&early).0.expect("ends").ended, "cancelled");
    assert_eq!(client.sh(&sandbox, "ls /ran").0.exit_code, Some(1));

    let spec = exec_spec(
        &sandbox,
        &[
            "sh",
            "-c",
            "trap 'exit 5' USR2; echo ready; while true; do sleep 0.01; done",
        ],
    );
    client.start(&spec, Mode::Stream);
    while !matches!(
        client.hear().expect("answers"),
        super::client::Said::Data { .. }
    ) {}
    other.kill(&spec, Some(12), 0).expect("is signalled");
    let (end, _) = client.follow::<dsec_proto::runtime::ExecEnd>(None);
    assert_eq!(end.expect("ends").exit_code, Some(5));
    node.down();
}
