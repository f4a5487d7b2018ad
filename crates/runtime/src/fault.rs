//! Fault points: named places where a test lets this process die, or stand still while it kills another.
//!
//! Off unless the node's own configuration names a directory (`dsec doctor` says so): a pass then costs one load. Nothing
//! from inside a sandbox, and no request, can arm one: that takes a file of root's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Passes a fault point. Every name is walked by `tests/integration/test_faults.py`, which reads them from the source: the
/// first part is the program, the second what is being done.
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        if $crate::fault::is_on() {
            $crate::fault::pass($name);
        }
    };
}

/// Looks for armed points in this directory from now on.
pub fn turn_on(directory: &Path) {
    tracing::warn!("fault points are on: {}", directory.display());
    let _ = DIRECTORY.set(directory.into());
}

/// Whether points can be armed on this node.
#[must_use]
pub fn is_on() -> bool {
    DIRECTORY.get().is_some()
}

/// Dies (`kill`) or stands still (`stop`) when the point is armed. The file moves first, so that it happens once.
pub fn pass(name: &str) {
    let Some(directory) = DIRECTORY.get() else {
        return;
    };
    let Ok(Some(signal)) = take(directory, name) else {
        return;
    };
    // SAFETY: a signal to this process itself.
    unsafe { libc::kill(libc::getpid(), signal) };
}

fn take(directory: &Path, name: &str) -> io::Result<Option<i32>> {
    let armed = directory.join("armed").join(name);
    let act = std::fs::read_to_string(&armed)?;
    std::fs::rename(&armed, directory.join("passed").join(name))?;
    Ok(match act.trim() {
        "kill" => Some(libc::SIGKILL),
        "stop" => Some(libc::SIGSTOP),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An armed point is taken once, and what is not armed is passed.
    #[test]
    fn taken_once() {
        let directory = std::env::temp_dir().join(format!("dsec-fault-{}", std::process::id()));
        for name in ["armed", "passed"] {
            std::fs::create_dir_all(directory.join(name)).expect("is made");
        }
        assert!(take(&directory, "x.y.z").is_err());
        std::fs::write(directory.join("armed/x.y.z"), "kill").expect("is written");
        assert_eq!(
            take(&directory, "x.y.z").expect("is armed"),
            Some(libc::SIGKILL)
        );
        assert!(take(&directory, "x.y.z").is_err());
        assert!(directory.join("passed/x.y.z").exists());
        std::fs::remove_dir_all(&directory).expect("is removed");
    }
}
