use super::program::{ALLOW, ASK, ERRNO, OURS};
use super::*;

const EPERM: u32 = ERRNO | libc::EPERM as u32;
const EPROTONOSUPPORT: u32 = ERRNO | libc::EPROTONOSUPPORT as u32;
const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;

const PROFILES: [ProfileName; 3] = [
    ProfileName::Default,
    ProfileName::Strict,
    ProfileName::Nested,
];

fn outcome(number: i64, arguments: [u32; 6]) -> u32 {
    outcome_in(ProfileName::Default, number, arguments)
}

fn outcome_in(profile: ProfileName, number: i64, arguments: [u32; 6]) -> u32 {
    let steps = program::program(&verdicts(profile), &Verdict::Always(UNKNOWN), false);
    program::outcome(&steps, OURS, number as u32, arguments)
}

/// Each call of the lists gets its list's answer, and what stands in neither ENOSYS.
#[test]
fn lists_are_obeyed() {
    for number in names::ALLOWED
        .iter()
        .filter(|number| **number != libc::SYS_socket)
    {
        assert_eq!(outcome(*number, [0; 6]), ALLOW, "{number}");
    }
    for number in names::REFUSED {
        assert_eq!(outcome(*number, [0; 6]), EPERM, "{number}");
    }
    assert_eq!(outcome(libc::SYS_clone3, [0; 6]), ENOSYS);
    assert_eq!(outcome(0x4000_0000 | libc::SYS_getpid, [0; 6]), ENOSYS);
    assert_eq!(outcome(9999, [0; 6]), ENOSYS);
}

/// Arguments that are refused: new user namespaces, odd families, typing into terminals, the pool's ioctls.
#[test]
fn arguments_are_looked_at() {
    let flags = (libc::CLONE_NEWUSER | libc::SIGCHLD) as u32;
    assert_eq!(outcome(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), EPERM);
    assert_eq!(
        outcome(libc::SYS_clone, [libc::SIGCHLD as u32, 0, 0, 0, 0, 0]),
        ALLOW
    );
    assert_eq!(
        outcome(libc::SYS_socket, [libc::AF_INET6 as u32, 1, 0, 0, 0, 0]),
        ALLOW
    );
    for family in [
        libc::AF_UNSPEC,
        libc::AF_PACKET,
        libc::AF_VSOCK,
        libc::AF_ALG,
    ] {
        assert_eq!(
            outcome(libc::SYS_socket, [family as u32, 1, 0, 0, 0, 0]),
            EPERM
        );
    }
    let ioctl = |command| outcome(libc::SYS_ioctl, [3, command, 0, 0, 0, 0]);
    for command in [TIOCSTI, TIOCLINUX, 0x5000_9410, 0x0000_9408] {
        assert_eq!(ioctl(command), EPERM, "{command:#x}");
    }
    for command in REFLINKS.into_iter().chain([0x5401, 0x5413, 0x541B]) {
        assert_eq!(ioctl(command), ALLOW, "{command:#x}");
    }
}

/// The program fits the kernel's limit of 4,096 steps, by far.
#[test]
fn program_is_short() {
    for profile in PROFILES {
        let steps = filter(profile, true).len() / 8;
        assert!(steps < 512, "{profile:?}: {steps} steps");
    }
}

/// No call is both refused outright and allowed.
#[test]
fn lists_are_disjoint() {
    for number in names::REFUSED {
        assert!(!names::ALLOWED.contains(number), "{number}");
    }
}

/// Strict lets through nothing that the default refuses, and makes no namespace at all.
#[test]
fn strict_is_stricter() {
    let of = |profile, number| outcome_in(profile, number, [0; 6]);
    for number in 0..512 {
        let both = [ProfileName::Default, ProfileName::Strict].map(|profile| of(profile, number));
        assert!(both[0] == both[1] || both[1] == EPERM, "{number}");
    }
    for number in names::REFUSED_BY_STRICT {
        assert_eq!(of(ProfileName::Strict, *number), EPERM, "{number}");
    }
    for flag in [libc::CLONE_NEWNS, libc::CLONE_NEWUTS, libc::CLONE_NEWNET] {
        let flags = [(flag | libc::SIGCHLD) as u32, 0, 0, 0, 0, 0];
        assert_eq!(
            outcome_in(ProfileName::Strict, libc::SYS_clone, flags),
            EPERM
        );
    }
    let thread = [0x003d_0f00, 0, 0, 0, 0, 0];
    assert_eq!(
        outcome_in(ProfileName::Strict, libc::SYS_clone, thread),
        ALLOW
    );
}

/// Nested opens mounts and namespaces by name, keeps the network and the cgroups, and nothing else changes.
#[test]
fn nested_opens_what_it_says() {
    let nested =
        |number, first: i32| outcome_in(ProfileName::Nested, number, [first as u32, 0, 0, 0, 0, 0]);
    let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    for number in [libc::SYS_clone, libc::SYS_unshare] {
        assert_eq!(nested(number, kinds), ALLOW);
        assert_eq!(nested(number, kinds | libc::CLONE_NEWNET), EPERM);
        assert_eq!(nested(number, libc::CLONE_NEWCGROUP), EPERM);
    }
    assert_eq!(nested(libc::SYS_unshare, CLONE_NEWTIME as i32), EPERM);
    for number in (0..512).filter(|number| !names::ALLOWED_BY_NESTED.contains(number)) {
        let unknown = names::UNKNOWN_IN_NESTED.contains(&number);
        let wanted = if unknown {
            ENOSYS
        } else {
            outcome(number, [0; 6])
        };
        assert_eq!(nested(number, 0), wanted, "{number}");
    }
}

/// The kernel's events, odd protocols of IP, attributes and extents of files.
#[test]
fn more_arguments() {
    let socket = |family: i32, protocol: u32| {
        outcome(libc::SYS_socket, [family as u32, 1, protocol, 0, 0, 0])
    };
    for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG] {
        assert_eq!(socket(libc::AF_NETLINK, protocol as u32), ALLOW);
    }
    for protocol in [
        libc::NETLINK_KOBJECT_UEVENT,
        libc::NETLINK_NETFILTER,
        libc::NETLINK_GENERIC,
        libc::NETLINK_AUDIT,
    ] {
        assert_eq!(socket(libc::AF_NETLINK, protocol as u32), EPROTONOSUPPORT);
    }
    for protocol in ODD_PROTOCOLS {
        assert_eq!(socket(libc::AF_INET6, protocol), EPROTONOSUPPORT);
    }
    for protocol in [0, 6, 17] {
        assert_eq!(socket(libc::AF_INET, protocol), ALLOW);
    }
    let ioctl = |command| outcome(libc::SYS_ioctl, [3, command, 0, 0, 0, 0]);
    for command in [
        FS_IOC_SETFLAGS,
        EXT4_IOC_MOVE_EXT,
        0xC0C0_586D,
        0xC004_5877,
        0x401C_5820,
    ] {
        assert_eq!(ioctl(command), EPERM, "{command:#x}");
    }
    for command in [FS_IOC_FSGETXATTR, 0x8008_6601, 0xC020_660B] {
        assert_eq!(ioctl(command), ALLOW, "{command:#x}");
    }
}

/// The limit of cores is told to be set and is not, wherever the new one lies; other limits, and looking, go on.
#[test]
fn cores_stay_limited() {
    let steps = program::program(
        &verdicts(ProfileName::Default),
        &Verdict::Always(UNKNOWN),
        true,
    );
    let prlimit = |resource: u32, new: u64| {
        let arguments = [0, u64::from(resource), new, 0, 0, 0];
        program::outcome_of_wide(&steps, OURS, libc::SYS_prlimit64 as u32, arguments)
    };
    for new in [1, 0x7fff_0000_0000, 0xffff_ffff] {
        assert_eq!(prlimit(libc::RLIMIT_CORE, new), ERRNO);
        assert_eq!(prlimit(libc::RLIMIT_NOFILE, new), ALLOW);
    }
    assert_eq!(prlimit(libc::RLIMIT_CORE, 0), ALLOW);
    #[cfg(target_arch = "x86_64")]
    for (resource, wanted) in [(libc::RLIMIT_CORE, ERRNO), (libc::RLIMIT_NOFILE, ALLOW)] {
        assert_eq!(
            outcome(libc::SYS_setrlimit, [resource, 1, 0, 0, 0, 0]),
            wanted
        );
    }
}

/// With a listener what is of note is asked about, and nothing else is different; every such call has a name.
#[test]
fn what_is_of_note_is_asked_about() {
    let kinds = libc::CLONE_NEWPID as u32;
    let arguments: [[u32; 6]; 5] = [
        [0; 6],
        [kinds, 0x9408, 0, 0, 0, 0],
        [libc::AF_INET as u32, 0x8_0003, 1, 0, 0, 0],
        [libc::AF_NETLINK as u32, 3, 0, 0, 0, 0],
        [libc::AF_VSOCK as u32, TIOCSTI, 0, 0, 0, 0],
    ];
    let mut asked = std::collections::BTreeSet::new();
    for profile in PROFILES {
        let [plain, listened] = [false, true].map(|listened| {
            program::program(&verdicts(profile), &Verdict::Always(UNKNOWN), listened)
        });
        for number in 0..512 {
            for arguments in arguments {
                let [one, other] = [&plain, &listened]
                    .map(|steps| program::outcome(steps, OURS, number, arguments));
                if other == ASK {
                    assert_eq!(one, EPERM, "{number}");
                    let of = noted(number as i32, arguments.map(u64::from));
                    assert_ne!(of.reason, "other", "{number}");
                    asked.insert((of.reason, of.name));
                } else {
                    assert_eq!(one, other, "{number}");
                }
            }
        }
    }
    for wanted in [
        ("mount", "mount"),
        ("namespace", "clone"),
        ("namespace", "unshare"),
        ("socket", "socket AF_VSOCK"),
        ("socket", "socket SOCK_RAW"),
        ("terminal", "ioctl TIOCSTI"),
        ("extents", "ioctl of btrfs"),
        ("trace", "ptrace"),
        ("kernel", "io_uring_setup"),
    ] {
        assert!(asked.contains(&wanted), "{wanted:?} of {asked:?}");
    }
}

/// Raw sockets are refused, netlink's own kind of them goes on.
#[test]
fn raw_sockets() {
    let socket =
        |family: i32, kind: u32| outcome(libc::SYS_socket, [family as u32, kind, 0, 0, 0, 0]);
    let raw = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as u32;
    assert_eq!(socket(libc::AF_INET, raw), EPERM);
    assert_eq!(socket(libc::AF_INET6, raw), EPERM);
    assert_eq!(socket(libc::AF_NETLINK, raw), ALLOW);
    assert_eq!(socket(libc::AF_UNIX, raw), ALLOW);
    assert_eq!(socket(libc::AF_INET, libc::SOCK_DGRAM as u32), ALLOW);
}
