//! The system-call filters: one classic BPF program for each profile, compiled once.
//!
//! It lets through what programs need. What is known to be dangerous, in whole or for certain arguments, is answered with
//! EPERM, which programs expect; everything else with ENOSYS, so that a call which a later kernel adds, or one with the x32
//! bit, is refused before anybody has thought about it. Another architecture kills.

mod names;
mod program;

use std::collections::BTreeMap;

use program::{Test, Verdict};

use crate::profiles::ProfileName;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
/// The second byte of an ioctl of btrfs. The pool is within reach by the node's files in /etc: whoever has one of them open
/// could have all of the pool written out, its neighbours' data too, or look around in it.
const BTRFS: (u32, u32) = (0xFF00, 0x9400);
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
const SOCKET_FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// The program of a profile, as the kernel takes it.
#[must_use]
pub fn filter(profile: ProfileName) -> Vec<u8> {
    program::bytes(&program::program(
        &verdicts(profile),
        &Verdict::Errno(libc::ENOSYS),
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
    put(&mut verdicts, names::ALLOWED, &Verdict::Allow);
    put(&mut verdicts, names::REFUSED, &REFUSE);
    let calls = [libc::SYS_clone, libc::SYS_unshare];
    put(&mut verdicts, &calls, &without(libc::CLONE_NEWUSER as u32));
    put(&mut verdicts, &[libc::SYS_socket], &families());
    put(&mut verdicts, &[libc::SYS_ioctl], &commands());
    match profile {
        ProfileName::Default => {}
        ProfileName::Strict => be_strict(&mut verdicts),
        ProfileName::Nested => let_nest(&mut verdicts),
    }
    verdicts
}

const REFUSE: Verdict = Verdict::Errno(libc::EPERM);

fn be_strict(verdicts: &mut Verdicts) {
    put(verdicts, &[libc::SYS_clone], &without(NAMESPACES as u32));
    let asked_or_none = Verdict::Argument(vec![allowed(0, 0), allowed(0, !0), refused(0, 0, 0)]);
    put(verdicts, &[libc::SYS_personality], &asked_or_none);
    put(verdicts, names::REFUSED_BY_STRICT, &REFUSE);
}

fn let_nest(verdicts: &mut Verdicts) {
    put(verdicts, names::ALLOWED_BY_NESTED, &Verdict::Allow);
    put(
        verdicts,
        names::UNKNOWN_IN_NESTED,
        &Verdict::Errno(libc::ENOSYS),
    );
    put(verdicts, &[libc::SYS_clone], &without(NOT_NESTED as u32));
    let kept = NOT_NESTED as u32 | CLONE_NEWTIME;
    put(verdicts, &[libc::SYS_unshare], &without(kept));
}

/// Flags that the first argument may not have.
fn without(flags: u32) -> Verdict {
    Verdict::Argument(vec![Test {
        unless: true,
        ..refused(0, flags, 0)
    }])
}

fn families() -> Verdict {
    let known = SOCKET_FAMILIES
        .iter()
        .map(|family| allowed(0, *family as u32));
    Verdict::Argument(known.chain([refused(0, 0, 0)]).collect())
}

fn commands() -> Verdict {
    let mut tests: Vec<Test> = REFLINKS.map(|command| allowed(1, command)).into();
    tests.extend([TIOCSTI, TIOCLINUX].map(|command| refused(1, !0, command)));
    tests.push(refused(1, BTRFS.0, BTRFS.1));
    Verdict::Argument(tests)
}

fn allowed(argument: u32, value: u32) -> Test {
    Test {
        argument,
        mask: !0,
        value,
        unless: false,
        errno: None,
    }
}

fn refused(argument: u32, mask: u32, value: u32) -> Test {
    Test {
        argument,
        mask,
        value,
        unless: false,
        errno: Some(libc::EPERM),
    }
}

#[cfg(test)]
mod tests;
