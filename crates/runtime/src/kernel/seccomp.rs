//! The system-call filter: one classic BPF program, compiled once.
//!
//! It lets through what programs need. What is known to be dangerous, in whole or for certain arguments, is answered with
//! EPERM, which programs expect; everything else with ENOSYS, so that a call which a later kernel adds, or one with the x32
//! bit, is refused before anybody has thought about it. Another architecture kills.

mod names;
mod program;

use std::collections::BTreeMap;

use program::{Test, Verdict};

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
/// The second byte of an ioctl of btrfs. The pool is within reach by the node's files in /etc: whoever has one of them open
/// could have all of the pool written out, its neighbours' data too, or look around in it.
const BTRFS: (u32, u32) = (0xFF00, 0x9400);
/// FICLONE, FICLONERANGE and FIDEDUPERANGE, which `cp` uses on any filesystem.
const REFLINKS: [u32; 3] = [0x4004_9409, 0x4020_940D, 0xC018_9436];
const SOCKET_FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// The program, as the kernel takes it.
#[must_use]
pub fn filter() -> Vec<u8> {
    program::bytes(&program::program(
        &verdicts(),
        &Verdict::Errno(libc::ENOSYS),
    ))
}

fn verdicts() -> BTreeMap<u32, Verdict> {
    let of = |numbers: &[i64], verdict: Verdict| -> Vec<(u32, Verdict)> {
        let each = numbers
            .iter()
            .map(|number| (*number as u32, verdict.clone()));
        each.collect()
    };
    let mut verdicts: BTreeMap<u32, Verdict> =
        of(names::ALLOWED, Verdict::Allow).into_iter().collect();
    verdicts.extend(of(names::REFUSED, Verdict::Errno(libc::EPERM)));
    verdicts.extend(of(&[libc::SYS_clone, libc::SYS_unshare], new_user()));
    verdicts.extend(of(&[libc::SYS_socket], families()));
    verdicts.extend(of(&[libc::SYS_ioctl], commands()));
    verdicts
}

fn new_user() -> Verdict {
    let flag = libc::CLONE_NEWUSER as u32;
    Verdict::Argument(vec![refused(0, flag, flag)])
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
        errno: None,
    }
}

fn refused(argument: u32, mask: u32, value: u32) -> Test {
    Test {
        argument,
        mask,
        value,
        errno: Some(libc::EPERM),
    }
}

#[cfg(test)]
mod tests {
    use super::program::{ALLOW, ERRNO, OURS};
    use super::*;

    const EPERM: u32 = ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;

    fn outcome(number: i64, arguments: [u32; 6]) -> u32 {
        let steps = program::program(&verdicts(), &Verdict::Errno(libc::ENOSYS));
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
        assert!(filter().len() / 8 < 512, "{} steps", filter().len() / 8);
    }

    /// No call is both refused outright and allowed.
    #[test]
    fn lists_are_disjoint() {
        for number in names::REFUSED {
            assert!(!names::ALLOWED.contains(number), "{number}");
        }
    }
}
