//! Which files a part of a node may open by name, by Landlock, whoever it is. What is open already stays as it is.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use libc::c_int;
use rustix::fs::{openat, Mode, OFlags, CWD};

/// Before it, files could be cut short all the same.
const OLDEST: c_int = 3;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// All of version 3: execution, reading, writing, names that come and go.
const ALL: u64 = (1 << 15) - 1;
/// Ioctls of devices, of version 5.
const IOCTL_DEV: u64 = 1 << 15;
/// Abstract sockets and signals, of version 6.
const SCOPED: u64 = 0b11;
const VERSION: c_int = 1;
const BENEATH: c_int = 1;

#[repr(C)]
struct Handled {
    files: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    place: c_int,
}

/// Files are opened below `read` for reading and below `all` for everything, from now on; nowhere else, and no program
/// is executed, nobody outside signalled, no abstract socket outside called. What does not exist is left out. `false`
/// where the kernel has no Landlock.
///
/// # Errors
/// The errno. The caller has given up new privileges, or is root, and has one thread.
pub fn confine_files(read: &[&Path], all: &[&Path]) -> io::Result<bool> {
    let nothing = std::ptr::null::<Handled>();
    // SAFETY: asks for the version: without rules, with no size.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    let version = c_int::try_from(version).unwrap_or(0);
    if version < OLDEST {
        return Ok(false);
    }
    let handled = Handled {
        files: if version >= 5 { ALL | IOCTL_DEV } else { ALL },
        network: 0,
        scoped: SCOPED,
    };
    let size = if version >= 6 {
        size_of::<Handled>()
    } else {
        size_of::<u64>()
    };
    // SAFETY: a structure that outlives the call, of which the kernel knows so much.
    let rules = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const handled,
            size,
            0,
        )
    };
    let rules = c_int::try_from(check(rules)?).map_err(io::Error::other)?;
    // SAFETY: new and ours.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    for path in read {
        allow(&rules, path, READ_FILE | READ_DIR)?;
    }
    for path in all {
        allow(&rules, path, handled.files)?;
    }
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })?;
    Ok(true)
}

fn allow(rules: &OwnedFd, path: &Path, rights: u64) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = match openat(CWD, path, flags, Mode::empty()) {
        Ok(place) => place,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let rule = Beneath {
        allowed: rights,
        place: place.as_raw_fd(),
    };
    // SAFETY: a structure and a descriptor that outlive the call.
    let done = unsafe {
        let rule = &raw const rule;
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            BENEATH,
            rule,
            0,
        )
    };
    check(done).map(drop)
}

fn check(done: libc::c_long) -> io::Result<libc::c_long> {
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Below what is named files are read, or written; elsewhere they are not even opened.
    #[test]
    fn named_alone() {
        let root = std::env::temp_dir().join(format!("dsec-landlock-{}", std::process::id()));
        for name in ["read", "all", "other"] {
            fs::create_dir_all(root.join(name)).expect("made");
            fs::write(root.join(name).join("file"), name).expect("written");
        }
        let below = root.clone();
        let thread = std::thread::spawn(move || {
            // SAFETY: plain numbers; of this thread only.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let (read, all, absent) = (below.join("read"), below.join("all"), below.join("absent"));
            let there = confine_files(&[&read, &absent], &[&all]).expect("confined");
            if !there {
                return;
            }
            let refused = |done: io::Result<()>| {
                let error = done.expect_err("is refused");
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            };
            assert_eq!(fs::read(read.join("file")).expect("read"), b"read");
            refused(fs::write(read.join("file"), "x"));
            fs::write(all.join("new"), "x").expect("written");
            fs::rename(all.join("new"), all.join("newer")).expect("renamed");
            refused(fs::read(below.join("other/file")).map(drop));
            refused(fs::read("/proc/self/status").map(drop));
            refused(fs::read_dir(&below).map(drop));
            refused(fs::remove_file(read.join("file")));
        });
        thread.join().expect("it holds");
        fs::remove_dir_all(root).expect("removed");
    }
}
