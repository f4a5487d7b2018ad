//! The system-call filter: two classic BPF programs, compiled once.
//!
//! The first lets through what programs need and answers ENOSYS to everything else, so that a call which a later kernel
//! adds, or one with the x32 bit, is refused before anybody has thought about it. The second answers EPERM to what is
//! known to be dangerous, in whole or for certain arguments. Of two refusals the kernel takes that of the filter which
//! was installed last: programs are told EPERM where they expect it. Another architecture kills.

mod names;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Cmp,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule,
};

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541C;
/// The second byte of an ioctl of btrfs. The pool is within reach by the node's files in /etc: whoever has one of them open
/// could have all of the pool written out, its neighbours' data too, or look around in it.
const BTRFS: (u64, u64) = (0xFF00, 0x9400);
/// FICLONE, FICLONERANGE and FIDEDUPERANGE, which `cp` uses on any filesystem.
const REFLINKS: [u64; 3] = [0x4004_9409, 0x4020_940D, 0xC018_9436];
const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
const SOCKET_FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

type Rules = BTreeMap<i64, Vec<Rule>>;

/// The programs, in the order in which they are installed.
///
/// # Errors
/// When the architecture is not one of ours.
pub fn programs() -> Result<[Vec<u8>; 2], String> {
    let refused = names::REFUSED.iter().map(|number| (*number, Vec::new()));
    let refused: Rules = refused.chain(by_argument()?).collect();
    let allowed: Rules = names::ALLOWED
        .iter()
        .map(|number| (*number, Vec::new()))
        .collect();
    Ok([
        compiled(
            allowed,
            SeccompAction::Errno(libc::ENOSYS as u32),
            SeccompAction::Allow,
        )?,
        compiled(
            refused,
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EPERM as u32),
        )?,
    ])
}

fn compiled(
    rules: Rules,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<Vec<u8>, String> {
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(|error| format!("{error}"))?;
    let filter = SeccompFilter::new(rules, otherwise, matching, architecture)
        .map_err(|error| error.to_string())?;
    let program: BpfProgram = filter
        .try_into()
        .map_err(|error: seccompiler::BackendError| error.to_string())?;
    let words = program.iter().flat_map(|step| {
        let mut word = [0u8; 8];
        word[..2].copy_from_slice(&step.code.to_ne_bytes());
        word[2] = step.jt;
        word[3] = step.jf;
        word[4..].copy_from_slice(&step.k.to_ne_bytes());
        word
    });
    Ok(words.collect())
}

/// Calls that are refused for certain arguments.
fn by_argument() -> Result<Rules, String> {
    let when = |argument, compare, value| Condition::new(argument, Width::Dword, compare, value);
    let rule = |conditions: Vec<_>| -> Result<Rule, String> {
        let conditions: Result<Vec<_>, _> = conditions.into_iter().collect();
        Rule::new(conditions.map_err(|error: seccompiler::BackendError| error.to_string())?)
            .map_err(|error| error.to_string())
    };
    let new_user = || rule(vec![when(0, Cmp::MaskedEq(NEW_USER), NEW_USER)]);
    let strange_family = rule(
        SOCKET_FAMILIES
            .iter()
            .map(|family| when(0, Cmp::Ne, *family as u64))
            .collect(),
    )?;
    let of_btrfs = [when(1, Cmp::MaskedEq(BTRFS.0), BTRFS.1)]
        .into_iter()
        .chain(REFLINKS.map(|command| when(1, Cmp::Ne, command)));
    let commands = vec![
        rule(vec![when(1, Cmp::Eq, TIOCSTI)])?,
        rule(vec![when(1, Cmp::Eq, TIOCLINUX)])?,
        rule(of_btrfs.collect())?,
    ];
    Ok(BTreeMap::from([
        (libc::SYS_clone, vec![new_user()?]),
        (libc::SYS_unshare, vec![new_user()?]),
        (libc::SYS_socket, vec![strange_family]),
        (libc::SYS_ioctl, commands),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both programs compile and fit the kernel's limit of 4,096 steps.
    #[test]
    fn programs_fit() {
        for program in programs().expect("compiles") {
            assert!(
                program.len() % 8 == 0 && program.len() / 8 <= 4096,
                "{} steps",
                program.len() / 8
            );
        }
    }

    /// No call is both refused outright and allowed.
    #[test]
    fn lists_are_disjoint() {
        for number in names::REFUSED {
            assert!(!names::ALLOWED.contains(number), "{number}");
        }
    }
}
