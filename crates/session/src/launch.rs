//! The parent's side of a spawn: one clone, with the namespaces and effective IDs it needs put around it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::ThreadNameSpaceType;

use crate::failing::{Doing, Fault};
use crate::home::{go_to, Home};
use crate::plan::{Clone3, Failure, IdRange, Namespace, Plan};
use crate::sys::{self, Cloned};
use crate::{capabilities, child, status, steps};

/// A child on its way to the end of its plan.
#[derive(Debug)]
pub struct Launched {
    /// PID in the parent's namespace.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// The parent's end of the status channel.
    pub channel: OwnedFd,
}

/// Make the child of a plan that [`crate::check::check`] has passed. `entered` holds a pidfd for each object
/// that the plan enters.
///
/// The caller is single-threaded and non-dumpable. Returns as soon as the child runs; how it fares comes by
/// the channel.
///
/// # Errors
/// The failure of step `clone`; no child is left.
///
/// # Panics
/// When the caller cannot have its own namespaces or IDs back: it could not go on.
pub fn launch(
    home: &Home,
    plan: &Plan,
    fds: &[OwnedFd],
    entered: &BTreeMap<String, BorrowedFd<'_>>,
) -> Result<Launched, Failure> {
    let (ours, theirs) = status::pair()
        .doing(|| "make the status channel")
        .map_err(|fault| fault.at("clone"))?;
    let cloned = clone_between(home, plan, fds, entered).map_err(|fault| fault.at("clone"))?;
    match cloned {
        Cloned::Child => child::run(child::Start {
            plan,
            fds,
            entered,
            channel: theirs,
        }),
        Cloned::Parent { pid, pidfd } => {
            drop(theirs);
            let launched = Launched {
                pid,
                pidfd,
                channel: ours,
            };
            if let Some(ids) = plan.clone.ids {
                map(&launched, ids);
            }
            Ok(launched)
        }
    }
}

/// Clone between the preparations and their undoing; the child does not undo.
fn clone_between(
    home: &Home,
    plan: &Plan,
    fds: &[OwnedFd],
    entered: &BTreeMap<String, BorrowedFd<'_>>,
) -> Result<Cloned, Fault> {
    let clone = &plan.clone;
    let outcome = prepare(home, clone, fds, entered).and_then(|()| {
        let cgroup = clone.cgroup.map(|index| fds[usize::from(index)].as_fd());
        sys::clone3(flags(clone), cgroup).doing(|| "clone")
    });
    if !matches!(outcome, Ok(Cloned::Child)) {
        undo(home, clone).expect("the parent has its own namespaces and IDs back");
    }
    outcome
}

fn prepare(
    home: &Home,
    clone: &Clone3,
    fds: &[OwnedFd],
    entered: &BTreeMap<String, BorrowedFd<'_>>,
) -> Result<(), Fault> {
    if let Some(object_id) = &clone.enter {
        go_to(entered[object_id], ThreadNameSpaceType::PROCESS_ID)
            .doing(|| format!("enter the PID namespace of {object_id}"))?;
    }
    if let Some(index) = clone.net {
        go_to(
            fds[usize::from(index)].as_fd(),
            ThreadNameSpaceType::NETWORK,
        )
        .doing(|| "enter the network namespace")?;
    }
    if clone.new.contains(&Namespace::Mount) {
        home.enter_nursery().doing(|| "enter the nursery")?;
    }
    if let Some(ids) = clone.ids {
        capabilities::survive_id_changes(true).doing(|| "keep capabilities")?;
        set_effective(ids.start).doing(|| "take the range's IDs")?;
    }
    Ok(())
}

fn undo(home: &Home, clone: &Clone3) -> Result<(), Errno> {
    if clone.ids.is_some() {
        set_effective(0)?;
        capabilities::survive_id_changes(false)?;
    }
    if clone.new.contains(&Namespace::Mount) {
        home.leave_nursery()?;
    }
    if clone.net.is_some() {
        home.back_to_net()?;
    }
    if clone.enter.is_some() {
        home.back_to_pid()?;
    }
    Ok(())
}

/// Set effective (and so filesystem) IDs; real and saved ones stay.
fn set_effective(id: u32) -> Result<(), Errno> {
    rustix::thread::set_thread_res_gid(None, Gid::from_raw(id), None)?;
    rustix::thread::set_thread_res_uid(None, Uid::from_raw(id), None)
}

fn flags(clone: &Clone3) -> u64 {
    let of = |kind: &Namespace| u64::from(steps::namespace(*kind).bits());
    clone.new.iter().map(of).fold(0, |all, flag| all | flag)
}

/// Write the maps and let the child go on. A child that was killed meanwhile is reported by its end.
fn map(launched: &Launched, ids: IdRange) {
    let line = format!("0 {} {}\n", ids.start, ids.count);
    let written = ["uid_map", "gid_map"].iter().try_for_each(|name| {
        std::fs::write(format!("/proc/{}/{name}", launched.pid), line.as_bytes())
    });
    if written.is_ok() {
        let _killed = status::go(&launched.channel);
        return;
    }
    // Without maps the child cannot become anybody: it must not wait for ever.
    let _killed =
        rustix::process::pidfd_send_signal(&launched.pidfd, rustix::process::Signal::KILL);
}
