//! Becoming nobody: what parses hostile bytes has nothing to lose.

use std::io;

use crate::capabilities;

/// Gives up root, for good: another user without groups, no capabilities, none to be had by executing something, nothing
/// that others of this user may look into.
///
/// # Errors
/// The errno of the step that failed.
pub fn become_user(uid: u32) -> io::Result<()> {
    let check = |result: libc::c_int| {
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    let limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain numbers, an empty list, and a limit that outlives its call. There is one thread yet: all that come
    // after it are the new user's.
    unsafe {
        check(libc::setrlimit(libc::RLIMIT_CORE, &limit))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        // Those that there are: the first one that there is not ends them.
        let mut capability = 0;
        while libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 {
            capability += 1;
        }
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(uid, uid, uid))?;
        check(libc::setresuid(uid, uid, uid))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
        // The change of user has taken it away.
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0))?;
        if libc::getuid() != uid || libc::setuid(0) == 0 || capability == 0 {
            return Err(io::Error::other("root could be had again"));
        }
    }
    Ok(())
}

/// Gives up, for good, all that root has beyond the files that are root's: no capabilities, none to be had by executing
/// something, nothing that others of root's processes without capabilities may look into.
///
/// # Errors
/// The errno of the step that failed.
pub fn give_up_capabilities() -> io::Result<()> {
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
    rustix::thread::set_no_new_privs(true)?;
    capabilities::bound(0)?;
    rustix::thread::clear_ambient_capability_set()?;
    capabilities::hold(0)?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    if !rustix::thread::capabilities(None)?.permitted.is_empty() {
        return Err(io::Error::other("capabilities are still there"));
    }
    Ok(())
}
