use super::*;
use crate::profiles::ProfileName;

fn profile(name: ProfileName) -> Profile {
    Profile::new(name, 20_000, true)
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

fn plan(user: &str, name: ProfileName) -> Plan {
    plan_that(user, name, true)
}

fn plan_that(user: &str, name: ProfileName, listens: bool) -> Plan {
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
        processors: Some(1),
        owned: vec![3, 4],
    };
    exec(
        &profile(name),
        &spec,
        &entrant,
        vec![(3, 1), (4, 2)],
        listens,
    )
}

fn position(plan: &Plan, wanted: fn(&Step) -> bool) -> Option<usize> {
    plan.steps.iter().position(wanted)
}

/// The order that keeps the host out of reach: groups, namespaces, filter, capabilities, IDs, and the directory as the user.
#[test]
fn order_of_steps() {
    for user in ["", "www-data"] {
        let plan = plan(user, ProfileName::Strict);
        let order = [
            position(&plan, |step| matches!(step, Step::JoinCgroups(_))),
            position(&plan, |step| matches!(step, Step::Enter { .. })),
            position(&plan, |step| matches!(step, Step::Rlimits(_))),
            position(&plan, |step| matches!(step, Step::Processors(1))),
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
        position(&plan(user, ProfileName::Default), |step| {
            matches!(step, Step::ResolveUser { .. })
        })
        .is_some()
    };
    assert!(resolves("www-data") && resolves("1000"));
    assert!(!resolves("") && !resolves("root") && !resolves("1000:1000"));
}

fn parts() -> InitParts {
    InitParts {
        entry: Entry {
            born: 0,
            joined: vec![1, 2],
        },
        start: 0x4000_0000,
        net: 3,
        overlay: 4,
        devices: 5,
        sysfs: 6,
        files: Vec::new(),
        protected: Vec::new(),
        shm_bytes: 1,
        hostname: "x".into(),
        program: 7,
    }
}

/// no_new_privs is the strict profile's alone, and its init's as well.
#[test]
fn strict_cannot_gain() {
    let set = |name| {
        let plans = [plan("", name), init(&profile(name), parts())];
        plans.map(|plan| position(&plan, |step| matches!(step, Step::NoNewPrivs)).is_some())
    };
    assert_eq!(set(ProfileName::Strict), [true, true]);
    assert_eq!(set(ProfileName::Default), [false, false]);
    assert_eq!(set(ProfileName::Nested), [false, false]);
}

/// What programs try is on record, if that is asked for; the init, which is ours, has no listener. A filter all have.
#[test]
fn programs_are_listened_to() {
    let listens = |plan: &Plan| {
        position(plan, |step| {
            matches!(step, Step::Seccomp { listen: true, .. })
        })
    };
    assert!(listens(&plan("", ProfileName::Default)).is_some());
    let without = plan_that("", ProfileName::Default, false);
    assert!(listens(&without).is_none());
    assert!(position(&without, |step| matches!(step, Step::Seccomp { .. })).is_some());
    assert!(listens(&init(&profile(ProfileName::Default), parts())).is_none());
}

/// An unmasked /proc is there for nested containers alone, and is covered before anything runs.
#[test]
fn unmasked_proc_is_covered() {
    let targets = |name| -> Vec<String> {
        let mounts = tree(&profile(name), &parts()).mounts;
        mounts.into_iter().map(|mount| mount.target).collect()
    };
    let nested = targets(ProfileName::Nested);
    let at = |path: &str| nested.iter().rposition(|target| target == path);
    assert!(at("/dev/mqueue/proc").expect("is there") < at("/dev/mqueue").expect("is there"));
    assert!(at(NO_GROUPS).is_some());
    for name in [ProfileName::Default, ProfileName::Strict] {
        let plain = targets(name);
        assert!(plain
            .iter()
            .all(|target| target != "/dev/mqueue/proc" && target != NO_GROUPS));
    }
}

/// The bounding set is cut once, while CAP_SETPCAP is there, for a working directory that root makes as well.
#[test]
fn bounds_are_set_once() {
    let spec = spec("1000:1000");
    let entrant = Entrant {
        object_id: "sb/x".into(),
        entry: Entry {
            born: 0,
            joined: Vec::new(),
        },
        start: 0x4000_0000,
        user: &spec.user,
        cwd: Some(b"/made"),
        create_cwd: true,
        processors: None,
        owned: Vec::new(),
    };
    let plan = exec(
        &profile(ProfileName::Strict),
        &spec,
        &entrant,
        Vec::new(),
        true,
    );
    let of = |wanted: fn(&&Step) -> bool| plan.steps.iter().filter(wanted).count();
    assert_eq!(of(|step| matches!(step, Step::Caps { .. })), 1);
    assert_eq!(of(|step| matches!(step, Step::Ids(_))), 2);
}
