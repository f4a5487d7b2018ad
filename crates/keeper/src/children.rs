//! Every child of the keeper: from its clone to the wait, with the status channel in between.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_proto::keeper::Ended;
use dsec_session::launch::Launched;
use dsec_session::passwd::MAX_ID;
use dsec_session::plan::Failure;
use dsec_session::status::{self, Received, Status};
use rustix::fs::{Gid, Uid};
use rustix::process::{WaitOptions, WaitStatus};

use crate::clock;
use crate::poll::{Poll, Token};
use crate::proc_stat;
use crate::process;

/// What a child is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Object(String),
    Service(String),
}

/// How far a child has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Walking through the steps of its plan.
    SettingUp,
    /// A step failed; its end is awaited.
    Failing(Failure),
    /// The program runs, or the file operation.
    Running,
}

/// Pipes that go to the user that the child finds.
#[derive(Debug)]
pub(crate) struct Grant {
    /// Host ID of the sandbox's 0.
    pub(crate) start: u32,
    pub(crate) owned: Vec<Rc<OwnedFd>>,
}

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) owner: Owner,
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Option<OwnedFd>,
    pub(crate) stage: Stage,
    pub(crate) grant: Option<Grant>,
    pub(crate) report: Option<Vec<u8>>,
    /// What the child has opened and handed over, until its program runs.
    pub(crate) sent: Vec<OwnedFd>,
}

/// What became of a child.
#[derive(Debug)]
pub(crate) enum Happened {
    /// The program was executed, or the file operation has begun. These it has opened for the object to hold.
    Started(Owner, Vec<OwnedFd>),
    /// It came to nothing, and is reaped.
    Failed(Owner, Failure),
    /// It ran, and is reaped.
    Ended(Owner, Ended),
}

/// All of them, by PID.
#[derive(Debug, Default)]
pub(crate) struct Children {
    pub(crate) alive: BTreeMap<i32, Child>,
}

impl Children {
    /// Watch a child from its clone on.
    pub(crate) fn add(
        &mut self,
        launched: Launched,
        owner: Owner,
        grant: Option<Grant>,
        poll: &Poll,
    ) {
        let pid = launched.pid;
        let watched = poll.add(&launched.channel, Token::Channel(pid));
        let stage = match watched {
            Ok(()) => Stage::SettingUp,
            Err(errno) => {
                kill(&launched.pidfd);
                Stage::Failing(failure("watch the child", errno))
            }
        };
        let child = Child {
            owner,
            pidfd: launched.pidfd,
            channel: Some(launched.channel),
            stage,
            grant,
            report: None,
            sent: Vec::new(),
        };
        self.alive.insert(pid, child);
    }

    /// Whether some child is still being set up.
    pub(crate) fn setting_up(&self) -> bool {
        self.alive
            .values()
            .any(|child| child.stage != Stage::Running)
    }

    /// Read the status channel of `pid` until it is empty.
    pub(crate) fn hear(&mut self, pid: i32, poll: &Poll) -> Option<Happened> {
        let child = self.alive.get_mut(&pid)?;
        let before = child.stage == Stage::SettingUp;
        while let Some(channel) = &child.channel {
            match status::receive(channel) {
                Ok(Received::Nothing) => break,
                Ok(Received::Status(status, fds)) => child.take(*status, fds),
                Ok(Received::Closed) | Err(_) => child.closed(pid, poll),
            }
        }
        let started = before && child.stage == Stage::Running;
        started.then(|| Happened::Started(child.owner.clone(), std::mem::take(&mut child.sent)))
    }

    /// Reap everything that has ended, orphans of others included.
    pub(crate) fn reap(&mut self, poll: &Poll) -> Vec<Happened> {
        let mut happened = Vec::new();
        while let Some(pid) = process::dead_child() {
            // What the child said must be heard while it can still be looked at.
            happened.extend(self.hear(pid, poll));
            happened.extend(self.wait(pid));
        }
        happened
    }

    fn wait(&mut self, pid: i32) -> Option<Happened> {
        let wanted = rustix::process::Pid::from_raw(pid);
        let (_, status) = rustix::process::waitpid(wanted, WaitOptions::NOHANG).ok()??;
        let child = self.alive.remove(&pid)?;
        Some(match child.stage {
            Stage::Failing(failure) => Happened::Failed(child.owner, failure),
            _ => Happened::Ended(child.owner, ended(status, child.report)),
        })
    }
}

fn ended(status: WaitStatus, report: Option<Vec<u8>>) -> Ended {
    Ended {
        exit_code: status.exit_status(),
        signal: status.terminating_signal(),
        ended_ns: clock::now_ns(),
        report,
        failure: None,
    }
}

impl Child {
    fn take(&mut self, status: Status, fds: Vec<OwnedFd>) {
        match status {
            Status::Held => self.sent.extend(fds),
            Status::Resolved { uid, gid } => self.give_away(uid, gid),
            Status::Failed(failure) => self.stage = Stage::Failing(failure),
            Status::Began => self.stage = Stage::Running,
            Status::Report(report) => self.report = rmp_serde::to_vec_named(&report).ok(),
        }
    }

    fn give_away(&mut self, uid: u32, gid: u32) {
        let Some(grant) = self.grant.take() else {
            return;
        };
        if let Err(failure) = grant.fulfil(uid, gid) {
            self.stage = Stage::Failing(failure);
            kill(&self.pidfd);
            return;
        }
        if let Some(channel) = &self.channel {
            // A child that is gone is reported by its end.
            let _gone = status::go(channel);
        }
    }

    fn closed(&mut self, pid: i32, poll: &Poll) {
        if let Some(channel) = self.channel.take() {
            poll.remove(&channel);
        }
        self.grant = None;
        if self.stage != Stage::SettingUp {
            return;
        }
        self.stage = if proc_stat::has_executed(pid) {
            Stage::Running
        } else {
            Stage::Failing(Failure {
                step: "child".to_owned(),
                errno: 0,
                message: "the child was killed while it was being set up".to_owned(),
            })
        };
    }
}

impl Grant {
    fn fulfil(&self, uid: u32, gid: u32) -> Result<(), Failure> {
        // The child has checked this, but it has read hostile files since it was forked.
        if uid > MAX_ID || gid > MAX_ID {
            return Err(failure("give the pipes away", rustix::io::Errno::RANGE));
        }
        let (uid, gid) = (
            Uid::from_raw(self.start + uid),
            Gid::from_raw(self.start + gid),
        );
        for fd in &self.owned {
            rustix::fs::fchown(fd, Some(uid), Some(gid))
                .map_err(|errno| failure("give the pipes away", errno))?;
        }
        Ok(())
    }
}

fn failure(what: &str, errno: rustix::io::Errno) -> Failure {
    Failure {
        step: "resolve_user".to_owned(),
        errno: errno.raw_os_error(),
        message: what.to_owned(),
    }
}

pub(crate) fn kill(pidfd: &OwnedFd) {
    let _dead = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
}
