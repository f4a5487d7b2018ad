//! The forked child: steps in order, then the end. It never returns into the parent's code.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};

use rustix::fs::Mode;

use dsec_weaken::keeps;

use crate::failing::{Doing, Fault};
use crate::passwd::Found;
use crate::plan::{End, Failure, Ids, Plan, Step};
use crate::status::Status;
use crate::{check, exec, fdmap, file_op, mounts, processors, status, steps, sys, terminal, users};

/// Exit code of a child that was never executed; the parent reports the failure, not this.
const UNEXECUTED: i32 = 127;

/// What the child starts from.
pub(crate) struct Start<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) fds: &'a [OwnedFd],
    pub(crate) entered: &'a BTreeMap<String, BorrowedFd<'a>>,
    pub(crate) channel: OwnedFd,
}

/// Carry the plan out and exit, unless a program takes over.
pub(crate) fn run(start: Start<'_>) -> ! {
    let Start {
        plan,
        fds,
        entered,
        mut channel,
    } = start;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut child = Child {
            fds,
            entered,
            channel: &mut channel,
            keep: u64::MAX,
            found: None,
            root: None,
            terminal: None,
        };
        child.carry_out(plan)
    }));
    let code = match outcome {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            status::tell(channel.as_fd(), &Status::Failed(failure));
            UNEXECUTED
        }
        Err(_panic) => {
            let fault = Fault::saying("the forked code panicked");
            status::tell(channel.as_fd(), &Status::Failed(fault.at("child")));
            UNEXECUTED
        }
    };
    // SAFETY: ends this process at once, without running anything of the parent's.
    unsafe { libc::_exit(code) }
}

struct Child<'a> {
    fds: &'a [OwnedFd],
    entered: &'a BTreeMap<String, BorrowedFd<'a>>,
    channel: &'a mut OwnedFd,
    /// Capabilities that `Caps` left.
    keep: u64,
    found: Option<Found>,
    root: Option<BorrowedFd<'a>>,
    /// The other end of the terminal that `OpenPty` made.
    terminal: Option<OwnedFd>,
}

impl<'a> Child<'a> {
    fn carry_out(&mut self, plan: &'a Plan) -> Result<(), Failure> {
        self.set_up(plan).map_err(|fault| fault.at("clone"))?;
        for step in &plan.steps {
            self.step(step)
                .map_err(|fault| fault.at(steps::name(step)))?;
        }
        match &plan.end {
            End::Exec(program) => {
                let home = self.found.as_ref().map(|found| found.home.as_slice());
                let terminal = self.terminal.as_ref();
                Err(exec::run(program, self.fds, terminal, home, self.channel).at("exec"))
            }
            End::File(op) => {
                let channel = self.channel.as_fd();
                let began = || status::tell(channel, &Status::Began);
                let report =
                    file_op::run(op, self.fds, &began).map_err(|fault| fault.at("file"))?;
                status::tell(channel, &Status::Report(report));
                Ok(())
            }
        }
    }

    /// Close what the plan does not need, before anything of a sandbox is entered.
    fn set_up(&mut self, plan: &Plan) -> Result<(), Fault> {
        #[cfg(feature = "weaken")]
        crate::weaken::leave_out(plan);
        steps::nondumpable()?;
        let mut keep: Vec<i32> = check::indices(plan)
            .map(|index| self.fds[usize::from(index)].as_raw_fd())
            .collect();
        keep.extend(self.entered.values().map(AsRawFd::as_raw_fd));
        keep.push(self.channel.as_raw_fd());
        let closing = if keeps!("close_range") {
            fdmap::gaps(&keep)
        } else {
            Vec::new()
        };
        for (first, last) in closing {
            sys::close_range(first, last, 0).doing(|| "close descriptors")?;
        }
        rustix::process::umask(Mode::from_raw_mode(0o022));
        sys::set_disposition(libc::SIGPIPE, false);
        if plan.clone.ids.is_some() {
            self.wait_for_parent()?;
            steps::become_user(0, 0, &[])?;
        }
        Ok(())
    }

    fn wait_for_parent(&self) -> Result<(), Fault> {
        if status::wait_for_go(self.channel.as_fd()) {
            return Ok(());
        }
        Err(Fault::saying("the parent is gone"))
    }

    fn step(&mut self, step: &'a Step) -> Result<(), Fault> {
        match step {
            Step::Setsid => steps::setsid(),
            Step::JoinCgroups(files) => steps::join_cgroups(files, self.fds),
            Step::Enter { object_id, kinds } => steps::enter(self.entered[object_id], kinds),
            Step::SetNs { fd, kind } => steps::set_ns(self.fds[usize::from(*fd)].as_fd(), *kind),
            Step::UnshareCgroup => steps::unshare_cgroup(),
            Step::MountTree(tree) => {
                self.root = Some(self.fds[usize::from(tree.root)].as_fd());
                mounts::build(tree, self.fds)
            }
            Step::PivotRoot => match self.root {
                Some(root) => mounts::pivot(root),
                None => Err(Fault::saying("there is no mounted tree")),
            },
            Step::Hostname(name) => {
                rustix::system::sethostname(name.as_bytes()).doing(|| "set the host name")
            }
            Step::Rlimits(limits) => steps::rlimits(limits),
            Step::Processors(count) => processors::narrow(*count),
            Step::ResolveUser { user, .. } => self.resolve(user),
            Step::Caps { keep } => {
                self.keep = *keep;
                steps::caps(*keep)
            }
            Step::Ids(ids) => self.become_user(ids.as_ref()),
            Step::Seccomp { program, listen } => self.filter(program, *listen),
            Step::NoNewPrivs => rustix::thread::set_no_new_privs(true).doing(|| "set no_new_privs"),
            Step::Chdir { path, create } => steps::chdir(path, *create),
            Step::OpenPty { rows, cols } => {
                let opened = terminal::open(self.channel.as_fd(), *rows, *cols)?;
                self.terminal = Some(opened);
                Ok(())
            }
            Step::ParentDeathSignal(signal) => steps::parent_death_signal(*signal),
            Step::HostUser { uid, gid } => steps::host_user(*uid, *gid),
            #[cfg(feature = "weaken")]
            Step::LeaveOut(_) => Ok(()), // from the beginning on
        }
    }

    fn filter(&self, program: &[u8], listen: bool) -> Result<(), Fault> {
        let listener = sys::seccomp(program, listen).doing(|| "install the seccomp filter")?;
        match listener {
            Some(listener) => {
                let handed = status::send(self.channel.as_fd(), &Status::Held, &[&listener]);
                handed.doing(|| "hand the filter's listener over")
            }
            None => Ok(()),
        }
    }

    /// Find the user, and wait until the parent has given the pipes to it.
    fn resolve(&mut self, user: &str) -> Result<(), Fault> {
        let found = users::look_up(user)?;
        let resolved = Status::Resolved {
            uid: found.uid,
            gid: found.gid,
        };
        status::tell(self.channel.as_fd(), &resolved);
        self.found = Some(found);
        self.wait_for_parent()
    }

    fn become_user(&self, ids: Option<&Ids>) -> Result<(), Fault> {
        let ids = match (ids, &self.found) {
            (Some(ids), _) => ids.clone(),
            (None, Some(found)) => Ids {
                uid: found.uid,
                gid: found.gid,
                groups: found.groups.clone(),
            },
            (None, None) => return Err(Fault::saying("no user was resolved")),
        };
        steps::ids(&ids, self.keep)
    }
}
