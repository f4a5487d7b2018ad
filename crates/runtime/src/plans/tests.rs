use super::*;

fn profile() -> Profile {
    Profile {
        seccomp: vec![1; 8],
        descriptors: 20_000,
    }
}

fn spec(user: &str) -> ExecSpec {
    ExecSpec {
        exec_id: String::new(),
        sandbox_id: String::new(),
        argv: vec![ByteBuf::from("sh")],
        programs: None,
        env: Vec::new(),
        cwd: None,
        create_cwd: false,
        user: user.into(),
        timeout_ms: None,
        grace_ms: 0,
        stdin: false,
        backpressure: false,
        max_output_bytes: 0,
        is_main: false,
        merge_stderr: false,
        pty: None,
        script: None,
    }
}

fn plan(user: &str, strict: bool) -> Plan {
    let spec = spec(user);
    let entrant = Entrant {
        object_id: "sb/x".into(),
        entry: Entry {
            born: 0,
            joined: vec![1, 2],
        },
        start: 0x4000_0000,
        user: &spec.user,
        cwd: None,
        create_cwd: false,
        owned: vec![3, 4],
    };
    exec(&profile(), strict, &spec, &entrant, vec![(3, 1), (4, 2)])
}

fn position(plan: &Plan, wanted: fn(&Step) -> bool) -> Option<usize> {
    plan.steps.iter().position(wanted)
}

/// The order that keeps the host out of reach: groups, namespaces, filter, capabilities, IDs, and the directory as the user.
#[test]
fn order_of_steps() {
    for user in ["", "www-data"] {
        let plan = plan(user, true);
        let order = [
            position(&plan, |step| matches!(step, Step::JoinCgroups(_))),
            position(&plan, |step| matches!(step, Step::Enter { .. })),
            position(&plan, |step| matches!(step, Step::Rlimits(_))),
            position(&plan, |step| matches!(step, Step::Seccomp { .. })),
            position(&plan, |step| matches!(step, Step::Caps { .. })),
            position(&plan, |step| matches!(step, Step::Ids(_))),
            position(&plan, |step| matches!(step, Step::Chdir { .. })),
        ];
        let order: Vec<usize> = order.into_iter().map(|at| at.expect("is there")).collect();
        assert!(
            order.windows(2).all(|pair| pair[0] < pair[1]),
            "{user:?}: {order:?}"
        );
    }
}

/// A named user is looked up before the IDs are taken; root and numbers are not looked up.
#[test]
fn only_names_are_resolved() {
    let resolves = |user| {
        position(&plan(user, false), |step| {
            matches!(step, Step::ResolveUser { .. })
        })
        .is_some()
    };
    assert!(resolves("www-data") && resolves("1000"));
    assert!(!resolves("") && !resolves("root") && !resolves("1000:1000"));
}

/// no_new_privs is the strict profile's alone.
#[test]
fn strict_cannot_gain() {
    let set =
        |strict| position(&plan("", strict), |step| matches!(step, Step::NoNewPrivs)).is_some();
    assert!(set(true) && !set(false));
}

/// What lets a process reach beyond its container is not among the capabilities.
#[test]
fn no_dangerous_capabilities() {
    let (sys_module, sys_rawio, sys_ptrace, sys_admin, net_admin, mknod) = (16, 17, 19, 21, 12, 27);
    for capability in [
        sys_module, sys_rawio, sys_ptrace, sys_admin, net_admin, mknod,
    ] {
        assert_eq!(CAPABILITIES & (1 << capability), 0, "{capability}");
    }
}
