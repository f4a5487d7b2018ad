//! cgroups behind one small interface, in three modes chosen by what is mounted.
//!
//! Each slot of the node has one set of groups, reused from sandbox to sandbox: limits at the slot, and
//! below it a leaf for the init and one for each exec, so that an exec's use and OOM kills are its own. Kills and
//! emptiness always go by the v2 tree; on v1 and hybrid machines the controllers are elsewhere ([`Layout`]).

mod layout;
mod leaf;
mod slot;
mod tool;
pub mod warm;

pub use layout::{Layout, Mode};
pub use leaf::{Baseline, Entry, Leaf};
pub use slot::{Limits, SlotGroups};
pub use tool::ToolGroup;
pub use warm::{Warm, WarmLeaf};

use std::io;
use std::path::Path;

use crate::kernel::sys;

/// Writes one value to a control file.
fn put(file: &Path, value: &str) -> io::Result<()> {
    // Not `fs::write`: control files must be neither created nor truncated.
    let mut open = std::fs::OpenOptions::new().write(true).open(file)?;
    io::Write::write_all(&mut open, value.as_bytes())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

/// A file with one number; `None` when it is missing or says `max`.
fn number(file: &Path) -> Option<u64> {
    sys::small_file(file).ok()?.trim().parse().ok()
}

/// The number beside `key` in a file of `key value` lines, 0 when it is missing.
fn field(file: &Path, key: &str) -> u64 {
    let text = sys::small_file(file).unwrap_or_default();
    field_of(&text, key)
}

/// Whether a group has processes, by its `cgroup.events`; one that cannot be read counts as having some, one that is gone
/// has none.
fn populated(text: io::Result<u64>) -> bool {
    match text {
        Ok(count) => count != 0,
        Err(error) => {
            error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ENODEV)
        }
    }
}

/// As [`populated`], of a group's directory.
fn has_processes(group: &Path) -> bool {
    let text = sys::small_file(&group.join("cgroup.events"));
    populated(text.map(|text| field_of(&text, "populated")))
}

fn field_of(text: &str, key: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

/// Makes a directory that may be there already.
fn directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::{field_of, populated};
    use std::io;

    /// A key is found whole, not as the beginning of a longer one.
    #[test]
    fn field_is_the_whole_key() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field_of(text, "oom_kill"), 3);
        assert_eq!(field_of(text, "missing"), 0);
    }

    /// A kill is never confirmed because nothing could be read.
    #[test]
    fn a_group_that_cannot_be_read_is_not_empty() {
        let failed = |errno| populated(Err(io::Error::from_raw_os_error(errno)));
        assert!(failed(libc::EMFILE) && failed(libc::ENOMEM));
        assert!(!failed(libc::ENOENT) && !failed(libc::ENODEV));
        assert!(populated(Ok(1)) && !populated(Ok(0)));
    }
}
