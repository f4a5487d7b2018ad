//! Fault points: named places where a test lets this process die, or stand still while it kills another.
//!
//! Off unless the node's own configuration names a directory (`dsec doctor` says so): a pass then costs one load. Nothing
//! from inside a sandbox, and no request, can arm one: that takes a file in a directory of the node's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, CWD};
use rustix::io::Errno;
use rustix::process::{getpid, kill_process, Signal};

static DIRECTORY: OnceLock<OwnedFd> = OnceLock::new();

/// Passes a fault point. Every name is walked by `tests/integration/test_faults*.py`, which read them from the source: the
/// first part is the program, the second what is being done.
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        if $crate::is_on() {
            $crate::pass($name);
        }
    };
}

/// Looks for armed points in this directory from now on, whoever this process is by then.
///
/// # Errors
/// The errno of opening it.
pub fn turn_on(directory: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
    let _ = DIRECTORY.set(opened);
    Ok(())
}

/// The same of a directory that is open, for whom it matters by what number.
pub fn turn_on_in(directory: OwnedFd) {
    let _ = DIRECTORY.set(directory);
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
    if let Ok(Some(signal)) = take(directory, name) {
        let _ = kill_process(getpid(), signal);
    }
}

fn take(directory: &impl AsFd, name: &str) -> Result<Option<Signal>, Errno> {
    let armed = format!("armed/{name}");
    let file = rustix::fs::openat(
        directory,
        &armed,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )?;
    let mut act = [0; 16];
    let length = rustix::io::read(&file, &mut act)?;
    rustix::fs::renameat(directory, &armed, directory, format!("passed/{name}"))?;
    Ok(match act[..length].trim_ascii() {
        b"kill" => Some(Signal::KILL),
        b"stop" => Some(Signal::STOP),
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
        let opened = std::fs::File::open(&directory).expect("is opened");
        assert_eq!(take(&opened, "x.y.z"), Err(Errno::NOENT));
        std::fs::write(directory.join("armed/x.y.z"), "kill\n").expect("is written");
        assert_eq!(take(&opened, "x.y.z"), Ok(Some(Signal::KILL)));
        assert_eq!(take(&opened, "x.y.z"), Err(Errno::NOENT));
        assert!(directory.join("passed/x.y.z").exists());
        std::fs::remove_dir_all(&directory).expect("is removed");
    }
}
