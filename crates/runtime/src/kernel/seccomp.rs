//! The system-call filters: one classic BPF program for each profile, compiled once.
//!
//! It lets through what programs need. What is known to be dangerous, in whole or for certain arguments, is answered with
//! EPERM, which programs expect, and what of that is of note is on record ([`noted`]); everything else with ENOSYS, so that a call which a later kernel adds, or one with the x32
//! bit, is refused before anybody has thought about it. Another architecture kills.

mod names;
mod noted;
mod program;

use std::collections::BTreeMap;

pub use noted::{noted, Noted};
use program::{Answer, Test, Verdict};

use crate::profiles::ProfileName;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
/// The second byte of an ioctl of btrfs. The pool is within reach by the node's files in /etc: whoever has one of them open
/// could have all of the pool written out, its neighbours' data too, or look around in it.
const BTRFS: (u32, u32) = (0xFF00, 0x9400);
/// The second byte of an ioctl of XFS, and of what any filesystem took over from it (freezing, trimming, attributes):
/// XFS_IOC_SWAPEXT, which exchanges the extents of files, is one.
const XFS: (u32, u32) = (0xFF00, 0x5800);
/// Only looks.
const FS_IOC_FSGETXATTR: u32 = 0x801C_581F;
/// Attributes of files: without copy on write, compressed (by threads of the kernel's that no limit holds), immutable.
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const EXT4_IOC_MOVE_EXT: u32 = 0xC028_660F;
/// FICLONE, FICLONERANGE and FIDEDUPERANGE, which `cp` uses on any filesystem.
const REFLINKS: [u32; 3] = [0x4004_9409, 0x4020_940D, 0xC018_9436];
/// `CLONE_NEW*` that `clone` and `unshare` share.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// What a nested container has to share with its sandbox. Root of a network namespace reaches nftables, traffic control
/// and IPsec; root of a cgroup namespace mounts hierarchies.
const NOT_NESTED: i32 = libc::CLONE_NEWNET | libc::CLONE_NEWCGROUP;
/// As an argument of `unshare` alone; in `clone` it is a bit of the signal.
const CLONE_NEWTIME: u32 = 0x80;
/// The part of a socket's kind that is no flag.
const KIND_OF_SOCKET: u32 = 0xF;
/// SCTP, DCCP, L2TP, UDP-Lite, SMC.
const ODD_PROTOCOLS: [u32; 5] = [132, 33, 115, 136, 256];

/// The program of a profile, as the kernel takes it. `listened`: it is installed with a listener, which is asked about
/// the calls of note, and has to answer EPERM; without one that ever was, the kernel would answer ENOSYS.
#[must_use]
pub fn filter(profile: ProfileName, listened: bool) -> Vec<u8> {
    program::bytes(&program::program(
        &verdicts(profile),
        &Verdict::Always(UNKNOWN),
        listened,
    ))
}

type Verdicts = BTreeMap<u32, Verdict>;

fn put(verdicts: &mut Verdicts, numbers: &[i64], verdict: &Verdict) {
    verdicts.extend(
        numbers
            .iter()
            .map(|number| (*number as u32, verdict.clone())),
    );
}

fn verdicts(profile: ProfileName) -> Verdicts {
    let mut verdicts = Verdicts::new();
    put(
        &mut verdicts,
        names::ALLOWED,
        &Verdict::Always(Answer::Allow),
    );
    refuse(&mut verdicts, names::REFUSED);
    // Of these, the kernel would refuse all but user namespaces by itself, and tell nobody.
    let none = NAMESPACES as u32;
    put(&mut verdicts, &[libc::SYS_clone], &without(none));
    let none = none | CLONE_NEWTIME;
    put(&mut verdicts, &[libc::SYS_unshare], &without(none));
    put(&mut verdicts, &[libc::SYS_socket], &families());
    put(&mut verdicts, &[libc::SYS_ioctl], &commands());
    put(&mut verdicts, &[libc::SYS_prlimit64], &limits(1, Some(2)));
    #[cfg(target_arch = "x86_64")]
    put(&mut verdicts, &[libc::SYS_setrlimit], &limits(0, None));
    match profile {
        ProfileName::Default => {}
        ProfileName::Strict => be_strict(&mut verdicts),
        ProfileName::Nested => let_nest(&mut verdicts),
    }
    verdicts
}

const UNKNOWN: Answer = Answer::Errno(libc::ENOSYS);

fn refuse(verdicts: &mut Verdicts, numbers: &[i64]) {
    for number in numbers {
        let answer = match noted::is_listed(*number) {
            true => Answer::Note,
            false => Answer::Errno(libc::EPERM),
        };
        put(verdicts, &[*number], &Verdict::Always(answer));
    }
}

fn be_strict(verdicts: &mut Verdicts) {
    let asked_or_none = Verdict::Argument(vec![allowed(0, 0), allowed(0, !0), refused(0, 0, 0)]);
    put(verdicts, &[libc::SYS_personality], &asked_or_none);
    refuse(verdicts, names::REFUSED_BY_STRICT);
}

fn let_nest(verdicts: &mut Verdicts) {
    put(
        verdicts,
        names::ALLOWED_BY_NESTED,
        &Verdict::Always(Answer::Allow),
    );
    put(
        verdicts,
        names::UNKNOWN_IN_NESTED,
        &Verdict::Always(UNKNOWN),
    );
    put(verdicts, &[libc::SYS_clone], &without(NOT_NESTED as u32));
    let kept = NOT_NESTED as u32 | CLONE_NEWTIME;
    put(verdicts, &[libc::SYS_unshare], &without(kept));
}

/// Flags that the first argument may not have.
fn without(flags: u32) -> Verdict {
    Verdict::Argument(vec![Test {
        unless: true,
        ..of_note(0, flags, 0)
    }])
}

/// Netlink for what programs look up of their own namespace; the kernel's events (of all its devices) and the other
/// protocols, each with a parser of its own, are not for them. Odd protocols of IP load modules. The answer is that of a
/// kernel without them: `useradd` and whatever else writes to the audit log gives up at any other.
fn families() -> Verdict {
    let netlink = [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG];
    let unknown = |test: Test| Test {
        then: Answer::Errno(libc::EPROTONOSUPPORT),
        ..test
    };
    let odd = ODD_PROTOCOLS.map(|protocol| unknown(refused(2, !0, protocol)));
    let mut tests = vec![allowed(0, libc::AF_UNIX as u32)];
    tests.extend(odd);
    let families = [libc::AF_INET as u32, libc::AF_INET6 as u32];
    // Nobody has CAP_NET_RAW: the kernel would give the same answer, and tell nobody.
    tests.extend(families.map(|family| Test {
        also: Some((0, !0, family)),
        ..of_note(1, KIND_OF_SOCKET, libc::SOCK_RAW as u32)
    }));
    tests.extend(families.map(|family| allowed(0, family)));
    tests.push(Test {
        unless: true,
        ..of_note(0, !0, libc::AF_NETLINK as u32)
    });
    tests.extend(netlink.map(|protocol| allowed(2, protocol as u32)));
    tests.push(unknown(refused(2, 0, 0)));
    Verdict::Argument(tests)
}

fn commands() -> Verdict {
    let known = REFLINKS.into_iter().chain([FS_IOC_FSGETXATTR]);
    let mut tests: Vec<Test> = known.map(|command| allowed(1, command)).collect();
    let commands = [TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, EXT4_IOC_MOVE_EXT];
    tests.extend(commands.map(|command| of_note(1, !0, command)));
    tests.extend([BTRFS, XFS].map(|(mask, kind)| of_note(1, mask, kind)));
    Verdict::Argument(tests)
}

/// A core's limit stays what it is, and who sets it is told that it did: `ulimit -c 0` has to work, and a limit of 0
/// would let the machine's `core_pattern` program have the core. Looking at it is no change.
fn limits(resource: u32, changed: Option<u32>) -> Verdict {
    let done = |test: Test| Test {
        then: Answer::Errno(0),
        ..test
    };
    let other = Test {
        unless: true,
        ..allowed(resource, libc::RLIMIT_CORE)
    };
    let Some(pointer) = changed else {
        return Verdict::Argument(vec![other, done(refused(0, 0, 0))]);
    };
    let given = |high| {
        done(Test {
            high,
            unless: true,
            ..refused(pointer, !0, 0)
        })
    };
    Verdict::Argument(vec![other, given(false), given(true)])
}

fn test(argument: u32, mask: u32, value: u32, then: Answer) -> Test {
    Test {
        argument,
        high: false,
        mask,
        value,
        unless: false,
        also: None,
        then,
    }
}

fn allowed(argument: u32, value: u32) -> Test {
    test(argument, !0, value, Answer::Allow)
}

fn refused(argument: u32, mask: u32, value: u32) -> Test {
    test(argument, mask, value, Answer::Errno(libc::EPERM))
}

fn of_note(argument: u32, mask: u32, value: u32) -> Test {
    test(argument, mask, value, Answer::Note)
}

#[cfg(test)]
mod tests;
