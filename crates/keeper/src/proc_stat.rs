//! The flags of a process in `/proc/PID/stat`, which a zombie still has.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Forked but never executed.
const PF_FORKNOEXEC: u64 = 0x40;
/// On its way out.
const PF_EXITING: u64 = 0x4;
/// Position of the flags behind the command name: state, ppid, pgrp, session, tty, tpgid, flags.
const FLAGS_FIELD: usize = 6;

fn flags(pid: i32) -> Option<u64> {
    parse_flags(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Whether the process, dead or alive but not reaped, has executed a program since it was forked.
pub(crate) fn has_executed(pid: i32) -> bool {
    // One call says it of most: a fork has its parent's program until it has another, and none when it is dying.
    static OURS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let ours = *OURS.get_or_init(|| program("self"));
    let its = program(&pid.to_string());
    if its.is_some() && ours.is_some() && its != ours {
        return true;
    }
    flags(pid).is_some_and(|flags| flags & PF_FORKNOEXEC == 0)
}

/// Device and inode.
fn program(process: &str) -> Option<(u64, u64)> {
    let file = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
    Some((file.dev(), file.ino()))
}

/// Whether the process is dead or dying.
pub(crate) fn is_exiting(pid: i32) -> bool {
    flags(pid).is_none_or(|flags| flags & PF_EXITING != 0)
}

fn parse_flags(stat: &[u8]) -> Option<u64> {
    // The command name is the program's own choice, parentheses and spaces included: the last ')' ends it.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(FLAGS_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{has_executed, is_exiting, parse_flags};

    /// A command name with parentheses and numbers in it changes nothing.
    #[test]
    fn hostile_names() {
        let stat = b"12 (a) S 1 2 3 4 5 64 6)) R 1 12 12 0 -1 4194304 100";
        assert_eq!(parse_flags(stat), Some(4_194_304));
        assert_eq!(parse_flags(b"12 (a"), None);
    }

    /// This very process was executed and lives.
    #[test]
    fn of_this_process() {
        let pid = i32::try_from(std::process::id()).expect("a PID");
        assert!(has_executed(pid));
        assert!(!is_exiting(pid));
    }
}
