use super::*;
use serde_bytes::ByteBuf;

const UNIQUE: &str = "abcdefghijklmnopqrstuvwxyz";

fn an_exec() -> ExecSpec {
    ExecSpec {
        exec_id: UNIQUE.into(),
        sandbox_id: format!("sb-rt-{UNIQUE}"),
        argv: vec![ByteBuf::from("true")],
        programs: None,
        env: vec![ByteBuf::from("A=b")],
        cwd: None,
        create_cwd: false,
        user: String::new(),
        timeout_ms: None,
        grace_ms: 2000,
        stdin: false,
        backpressure: false,
        max_output_bytes: 1 << 20,
        is_main: false,
        merge_stderr: false,
        pty: None,
        script: None,
    }
}

fn a_sandbox() -> SandboxSpec {
    SandboxSpec {
        sandbox_id: format!("sb-rt-{UNIQUE}"),
        layers: vec!["0".repeat(64)],
        memory_bytes: 1 << 30,
        cpu_milli: 2000,
        pids: 64,
        disk_bytes: 1 << 30,
        shm_bytes: 1 << 26,
        hostname: "box".into(),
        profile: "default".into(),
        idle_timeout_ms: 0,
        lifetime_ms: 1000,
        main: None,
        job: None,
        from_disk: None,
        from_snapshot: None,
        endpoints: Vec::new(),
        egress: None,
        protected: Vec::new(),
    }
}

fn code(result: WireResult<()>) -> String {
    result.expect_err("is refused").code
}

/// Whole specifications pass, so that the refusals below are due to what they change.
#[test]
fn good_ones_pass() {
    sandbox(&a_sandbox(), "rt").expect("passes");
    exec(&an_exec()).expect("passes");
}

/// IDs that could name a path, another node or nothing are refused.
#[test]
fn ids_are_patterns() {
    for text in [
        "",
        "sb-rt-../../../../etc/passwd",
        "sb--abcdefghijklmnopqrstuvwxyz",
        "sb-rt-ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    ] {
        assert_eq!(code(sandbox_id(text)), "invalid_argument", "{text}");
    }
    assert_eq!(
        code(exec_id("abcdefghijklmnopqrstuvwxy1")),
        "invalid_argument"
    );
    assert_eq!(code(digest(&"G".repeat(64))), "invalid_argument");
    assert_eq!(code(digest("../x")), "invalid_argument");
    assert_eq!(code(sandbox(&a_sandbox(), "other")), "invalid_argument");
}

/// Limits of zero, and limits beyond reason, are refused.
#[test]
fn limits_have_a_range() {
    let broken: [fn(&mut SandboxSpec); 9] = [
        |spec| spec.memory_bytes = 0,
        |spec| spec.cpu_milli = 0,
        |spec| spec.cpu_milli = u64::MAX,
        |spec| spec.pids = 0,
        |spec| spec.disk_bytes = 0,
        |spec| spec.shm_bytes = 0,
        |spec| spec.lifetime_ms = 0,
        |spec| spec.hostname = "a b".into(),
        |spec| spec.layers.clear(),
    ];
    for (number, change) in broken.iter().enumerate() {
        let mut spec = a_sandbox();
        change(&mut spec);
        assert_eq!(
            code(sandbox(&spec, "rt")),
            "invalid_argument",
            "case {number}"
        );
    }
}

/// A profile that does not exist is not replaced by another.
#[test]
fn profile_is_by_name() {
    let mut spec = a_sandbox();
    spec.profile = "open".into();
    assert_eq!(code(sandbox(&spec, "rt")), "unsupported");
}

/// Arguments with NUL bytes, relative directories and half a user are refused.
#[test]
fn exec_fields_are_checked() {
    let broken: [fn(&mut ExecSpec); 7] = [
        |spec| spec.argv.clear(),
        |spec| spec.argv[0] = ByteBuf::from("a\0b"),
        |spec| spec.env[0] = ByteBuf::from("novalue"),
        |spec| spec.cwd = Some(ByteBuf::from("relative")),
        |spec| spec.user = "a:".into(),
        |spec| spec.max_output_bytes = MAX_OUTPUT + 1,
        |spec| spec.timeout_ms = Some(0),
    ];
    for (number, change) in broken.iter().enumerate() {
        let mut spec = an_exec();
        change(&mut spec);
        assert_eq!(code(exec(&spec)), "invalid_argument", "case {number}");
    }
}

/// Only root and pairs of numbers go without a look-up inside.
#[test]
fn known_users() {
    assert_eq!(known_user(""), Some((0, 0)));
    assert_eq!(known_user("root"), Some((0, 0)));
    assert_eq!(known_user("1000:100"), Some((1000, 100)));
    assert_eq!(known_user("1000"), None);
    assert_eq!(known_user("www-data"), None);
    assert_eq!(known_user("70000:1"), None);
}
