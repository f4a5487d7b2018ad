//! Which processes of a session belong to its run, and how they are signalled.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use tokio::io::Interest;

use crate::kernel::poll;
use crate::kernel::sys::{check, owned};

/// One process of the group, by the host's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// PID.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Start time; with the PID it names the process for good.
    pub started: u64,
}

/// PIDs in a v2 group.
///
/// # Errors
/// When it cannot be read.
pub fn pids(group: &Path) -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// What there is to know of a process, if it lives.
#[must_use]
pub fn look(pid: i32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &text)
}

fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name is the program's own choice and may hold anything.
    let at = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[at + 1..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// What of `all` the run has started: not the shell, not what was there before, not the children of that. Pure.
#[must_use]
pub fn of_run(shell: i32, older: &HashSet<(i32, u64)>, all: &[Process]) -> Vec<Process> {
    let by_pid: HashMap<i32, &Process> = all.iter().map(|each| (each.pid, each)).collect();
    let spared = |process: &Process| {
        let mut at = process;
        // Parents cannot form a ring; the bound is for a list that was read while it changed.
        for _ in 0..=all.len() {
            if older.contains(&(at.pid, at.started)) {
                return true;
            }
            match by_pid.get(&at.parent) {
                Some(parent) if at.parent != shell => at = parent,
                _ => return false,
            }
        }
        false
    };
    all.iter()
        .filter(|process| process.pid != shell && !spared(process))
        .copied()
        .collect()
}

/// A pidfd of a process, if it still is the one that was seen.
fn open(process: &Process) -> Option<OwnedFd> {
    // SAFETY: plain numbers.
    let opened = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process.pid, 0) });
    let same = || look(process.pid).is_some_and(|now| now.started == process.started);
    opened.ok().filter(|_| same())
}

/// Returns when a process has ended.
pub async fn ended(process: &Process) -> io::Result<()> {
    if let Some(pidfd) = open(process) {
        poll::watch(pidfd, Interest::READABLE)?
            .readable()
            .await
            .map(drop)?;
    }
    Ok(())
}

/// Signals a process, if it still is the one that was seen.
pub fn signal(process: &Process, number: i32) {
    if let Some(pidfd) = open(process) {
        // SAFETY: a valid pidfd, no siginfo.
        let sent = check(unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd.as_raw_fd(),
                number,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        });
        match sent {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                tracing::warn!(pid = process.pid, "signal: {error}");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process {
            pid,
            parent,
            started: 100,
        }
    }

    /// A name with spaces and parentheses does not shift the fields.
    #[test]
    fn a_hostile_name() {
        let stat = b"7 (a) R 1 (b) S 5 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 1";
        let found = parse(7, stat).expect("parses");
        assert_eq!((found.parent, found.started), (5, 4711));
    }

    /// Background jobs of earlier runs are spared with all that they start; orphans are not.
    #[test]
    fn what_was_there_is_spared() {
        let all = [
            process(10, 1),
            process(11, 10),
            process(12, 11),
            process(13, 12),
            process(20, 10),
            process(21, 20),
            process(30, 1),
        ];
        let older = HashSet::from([(11, 100)]);
        let pids: Vec<i32> = of_run(10, &older, &all)
            .iter()
            .map(|each| each.pid)
            .collect();
        assert_eq!(pids, vec![20, 21, 30]);
    }

    /// A PID that was used again is another process.
    #[test]
    fn a_pid_is_no_identity() {
        let all = [process(10, 1), process(11, 10)];
        assert_eq!(of_run(10, &HashSet::from([(11, 99)]), &all).len(), 1);
    }
}
