//! What is said to the shell of a session, and what it says back. Pure.
//!
//! The shell's own script is a pipe. It gets a prelude, then two lines for each run: one that sources the script, which stands
//! in a memfd, one that tells its status on a pipe of its own. Nothing of it is a loop, so that `break` in a script finds
//! none; syntax errors and what else a sourced script may die of end there (`command` keeps special built-ins from
//! ending the shell). Sourced twice with the same number, a script runs once and its status is told twice: that is how a
//! runtime that was killed in between finds out.

/// The shell's script: a pipe, closed by the prelude once the shell has opened it by name.
pub const COMMANDS: i32 = 9;
/// Where statuses are told. Beyond what dash can name in a redirection, and so out of the way of scripts.
pub const STATUS: i32 = 251;
/// The script of the run.
pub const SCRIPT: i32 = 252;
/// Last argument of the shell.
pub const SOURCE: &str = "/proc/self/fd/9";
/// What it is told when its session is closed.
pub const LEAVE: &str = "exit 0\n";

/// What SIGURG does while a script runs: it ends, with all that called each other in it, and the shell goes on.
///
/// bash simulates a `return` for each command for which the DEBUG trap gives 2; the others have an error of a special
/// built-in fall through to the `command` that called the script. SIGURG is ignored where there is no trap for it, in
/// programs and in a shell that took the trap away.
pub const PRELUDE: &str = r#"exec 9<&-
__dsec_n=0 __dsec_s=0 __dsec_in= __dsec_stop=
if [ -n "${BASH_VERSION-}" ]; then trap '[ ${#BASH_SOURCE[@]} -gt 1 ] && { __dsec_stop=1; shopt -s extdebug; set -T; trap '\''{ [ ${#BASH_SOURCE[@]} -lt 2 ] || [ x -eq 0 ]; } 2>/dev/null'\'' DEBUG; } 2>/dev/null' URG; else trap '[ "$__dsec_in" ] && { . /dev/null/none; } 2>/dev/null' URG; fi
"#;

/// The lines of a run. `last`: the status of the run before, which `$?` begins with. `merged`: standard error is the
/// descriptor of standard output meanwhile, the sourcing's own messages included.
///
/// What is not the script's is quiet under `set -x`, but for the sourcing itself.
#[must_use]
pub fn lines(number: u64, last: i32, merged: bool) -> String {
    let before = if last == 0 {
        String::new()
    } else {
        format!("(exit {last}); ")
    };
    let (open, close) = if merged { ("{ ", "; } 2>&1") } else { ("", "") };
    format!(
        "{{ case ${{__dsec_n-}} in {number}) __dsec_f=/dev/null;; \
         *) __dsec_n={number} __dsec_f=/proc/self/fd/{SCRIPT} __dsec_in=1;; esac; }} 2>/dev/null; \
         {open}{before}command . \"$__dsec_f\"{close}\n\
         {{ __dsec_t=$?; __dsec_in=; \
         case $__dsec_stop in 1) trap - DEBUG; shopt -u extdebug; set +T; __dsec_stop=;; esac; \
         case $__dsec_f in /dev/null) ;; *) __dsec_s=$__dsec_t;; esac; \
         command echo \"{number} $__dsec_s\" >|/proc/self/fd/{STATUS} || exit \"$__dsec_s\"; }} 2>/dev/null\n"
    )
}

/// Statuses as they come in pieces. Whatever else is written there is hostile and dropped.
#[derive(Debug, Default)]
pub struct Statuses {
    rest: Vec<u8>,
}

impl Statuses {
    /// The whole lines so far: (number, status).
    pub fn take(&mut self, bytes: &[u8]) -> Vec<(u64, i32)> {
        self.rest.extend(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = match whole {
            Some(at) => self.rest.drain(..=at).collect(),
            None => Vec::new(),
        };
        if self.rest.len() > 64 {
            self.rest.clear();
        }
        lines
            .split(|byte| *byte == b'\n')
            .filter_map(read)
            .collect()
    }
}

fn read(line: &[u8]) -> Option<(u64, i32)> {
    let (number, status) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let status = status.parse().ok()?;
    (0..256)
        .contains(&status)
        .then_some((number.parse().ok()?, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are put together from pieces; what is no status is dropped, and does not pile up.
    #[test]
    fn statuses_in_pieces() {
        let mut statuses = Statuses::default();
        assert_eq!(statuses.take(b"1 0\n2 25"), vec![(1, 0)]);
        assert_eq!(statuses.take(b"5\nnonsense\n3 999\n-1 0\n"), vec![(2, 255)]);
        assert_eq!(statuses.take(&[b'x'; 1000]), vec![]);
        assert_eq!(statuses.take(b"4 7\n"), vec![(4, 7)]);
    }

    /// Both lines fit what a pipe takes as a whole.
    #[test]
    fn lines_are_atomic() {
        let lines = lines(u64::MAX, 255, true);
        assert!(lines.len() < libc::PIPE_BUF);
        assert_eq!(lines.matches('\n').count(), 2);
    }
}
