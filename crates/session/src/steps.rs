//! The steps of a plan that are one or two system calls each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dsec_weaken::keeps;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Signal, Uid};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

use crate::failing::{shown, Doing, Fault};
use crate::plan::{FdIndex, Ids, Namespace, Step};
use crate::{capabilities, in_root, sys};

/// The name of a step, as its failure bears it.
pub(crate) fn name(step: &Step) -> &'static str {
    match step {
        Step::Setsid => "setsid",
        Step::JoinCgroups(_) => "join_cgroups",
        Step::Enter { .. } => "enter",
        Step::SetNs { .. } => "set_ns",
        Step::UnshareCgroup => "unshare_cgroup",
        Step::MountTree(_) => "mount_tree",
        Step::PivotRoot => "pivot_root",
        Step::Hostname(_) => "hostname",
        Step::Rlimits(_) => "rlimits",
        Step::Processors(_) => "processors",
        Step::ResolveUser { .. } => "resolve_user",
        Step::Caps { .. } => "caps",
        Step::Ids(_) => "ids",
        Step::Seccomp { .. } => "seccomp",
        Step::NoNewPrivs => "no_new_privs",
        Step::Chdir { .. } => "chdir",
        Step::OpenPty { .. } => "open_pty",
        Step::ParentDeathSignal(_) => "parent_death_signal",
        Step::HostUser { .. } => "host_user",
        #[cfg(feature = "weaken")]
        Step::LeaveOut(_) => "leave_out",
    }
}

pub(crate) fn namespace(kind: Namespace) -> ThreadNameSpaceType {
    match kind {
        Namespace::User => ThreadNameSpaceType::USER,
        Namespace::Pid => ThreadNameSpaceType::PROCESS_ID,
        Namespace::Mount => ThreadNameSpaceType::MOUNT,
        Namespace::Net => ThreadNameSpaceType::NETWORK,
        Namespace::Uts => ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME,
        Namespace::Ipc => ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION,
        Namespace::Cgroup => ThreadNameSpaceType::CONTROL_GROUP,
    }
}

pub(crate) fn namespaces(kinds: &[Namespace]) -> ThreadNameSpaceType {
    kinds
        .iter()
        .fold(ThreadNameSpaceType::empty(), |all, kind| {
            all | namespace(*kind)
        })
}

pub(crate) fn setsid() -> Result<(), Fault> {
    rustix::process::setsid().doing(|| "setsid").map(drop)
}

pub(crate) fn join_cgroups(files: &[FdIndex], fds: &[OwnedFd]) -> Result<(), Fault> {
    for index in files {
        rustix::io::write(&fds[usize::from(*index)], b"0")
            .doing(|| format!("join the cgroup of descriptor {index}"))?;
    }
    Ok(())
}

pub(crate) fn enter(target: BorrowedFd<'_>, kinds: &[Namespace]) -> Result<(), Fault> {
    rustix::thread::move_into_thread_name_spaces(target, namespaces(kinds))
        .doing(|| "enter the namespaces")
}

pub(crate) fn set_ns(target: BorrowedFd<'_>, kind: Namespace) -> Result<(), Fault> {
    rustix::thread::move_into_thread_name_spaces(target, namespace(kind))
        .doing(|| format!("enter the {kind:?} namespace"))
}

pub(crate) fn unshare_cgroup() -> Result<(), Fault> {
    // SAFETY: this process is single-threaded and shares no descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .doing(|| "make a cgroup namespace")
}

pub(crate) fn rlimits(limits: &[(u32, u64, u64)]) -> Result<(), Fault> {
    for (resource, soft, hard) in limits {
        sys::set_limit(*resource, *soft, *hard)
            .doing(|| format!("set resource limit {resource} to {soft}, {hard}"))?;
    }
    Ok(())
}

pub(crate) fn caps(keep: u64) -> Result<(), Fault> {
    capabilities::bound(keep).doing(|| "drop capabilities from the bounding set")?;
    capabilities::inherit_none().doing(|| "clear the inheritable set")
}

/// Become the user, and hold of `keep` what root would hold, nothing for anybody else.
pub(crate) fn ids(ids: &Ids, keep: u64) -> Result<(), Fault> {
    become_user(ids.uid, ids.gid, &ids.groups)?;
    let held = if ids.uid == 0 { keep } else { 0 };
    capabilities::hold(held).doing(|| "set capabilities")
}

pub(crate) fn host_user(uid: u32, gid: u32) -> Result<(), Fault> {
    become_user(uid, gid, &[])?;
    let held = if uid == 0 { u64::MAX } else { 0 };
    capabilities::hold(held).doing(|| "set capabilities")
}

/// Set all IDs. The kernel may make a process dumpable again with them (`fs.suid_dumpable`), so that is undone.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), Fault> {
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    rustix::thread::set_thread_groups(&groups).doing(|| "set groups")?;
    let gid_set = Gid::from_raw(gid);
    rustix::thread::set_thread_res_gid(gid_set, gid_set, gid_set)
        .doing(|| format!("set the group ID {gid}"))?;
    let uid_set = Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid_set, uid_set, uid_set)
        .doing(|| format!("set the user ID {uid}"))?;
    nondumpable()
}

pub(crate) fn nondumpable() -> Result<(), Fault> {
    let behavior = if keeps!("nondumpable") {
        DumpableBehavior::NotDumpable
    } else {
        DumpableBehavior::Dumpable
    };
    rustix::process::set_dumpable_behavior(behavior).doing(|| "become non-dumpable")
}

pub(crate) fn chdir(path: &[u8], create: bool) -> Result<(), Fault> {
    let at = || format!("change directory to {}", shown(path));
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = match in_root::open_here(path, flags) {
        Err(Errno::NOENT) if create => in_root::make_directories(path),
        result => result,
    };
    let directory = directory.doing(at)?;
    rustix::process::fchdir(directory.as_fd()).doing(at)
}

pub(crate) fn parent_death_signal(number: i32) -> Result<(), Fault> {
    let signal = Signal::from_named_raw(number)
        .ok_or_else(|| Fault::with(Errno::INVAL, format!("{number} is no signal")))?;
    rustix::process::set_parent_process_death_signal(Some(signal))
        .doing(|| "set the parent death signal")
}
