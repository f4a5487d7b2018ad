//! The exec in place: same PID, same children, same descriptors, new program.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dsec_fault::fault;
use dsec_proto::keeper::Refusal;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::time::Timespec;

use crate::children::{Child, Owner};
use crate::connections::{refusal, Asker, Connection, Role};
use crate::keeper::Keeper;
use crate::note;
use crate::objects::{Object, State};
use crate::saved::{self, Saved, SavedChild, SavedConnection, SavedObject, SavedSlot, SavedStage};
use crate::services::{Slot, Stage};

/// How long the new program has to say that it understands the state.
const CHECK_SECONDS: i64 = 5;

/// An exec in place that was asked for.
#[derive(Debug)]
pub(crate) struct Reexec {
    asker: Asker,
    program: PathBuf,
}

impl Keeper {
    /// Note the wish; it is carried out when no child is being set up.
    pub(crate) fn ask_reexec(
        &mut self,
        asker: Asker,
        program: Option<String>,
    ) -> Result<(), Refusal> {
        if self.reexec.is_some() {
            return Err(refusal("busy", "the keeper is being replaced"));
        }
        let program = program.map_or_else(|| self.program.clone(), PathBuf::from);
        self.reexec = Some(Reexec { asker, program });
        self.connections.pause(true, &self.poll);
        fault!("keeper.reexec.asked");
        Ok(())
    }

    /// Become the new program, if it is time. A failure leaves everything as it was.
    pub(crate) fn try_reexec(&mut self) {
        if self.reexec.is_none() || self.children.setting_up() {
            return;
        }
        let Some(reexec) = self.reexec.take() else {
            return;
        };
        let reason = self.replace(&reexec);
        note::event("not_replaced", serde_json::json!({"reason": reason}));
        self.connections.pause(false, &self.poll);
        self.connections.reply(
            reexec.asker,
            Err(refusal("failed", reason)),
            Vec::new(),
            &self.poll,
        );
    }

    /// Returns only when it failed, with the reason.
    fn replace(&self, reexec: &Reexec) -> String {
        let saved = self.save(reexec.asker);
        let state = match saved.encode().and_then(|bytes| store(&bytes)) {
            Ok(state) => state,
            Err(reason) => return reason,
        };
        let number = state.as_raw_fd().to_string();
        if let Err(reason) = understands(&reexec.program, &number) {
            return reason;
        }
        fault!("keeper.reexec.checked");
        let descriptors = saved.descriptors();
        keep_open(&descriptors, true);
        let reason = execute(&reexec.program, &number);
        keep_open(&descriptors, false);
        reason
    }

    fn save(&self, asker: Asker) -> Saved {
        Saved {
            version: saved::VERSION,
            run_dir: self.run_dir.path.to_string_lossy().into_owned(),
            lock: self.run_dir.lock.as_raw_fd(),
            listener: self.run_dir.listener.as_raw_fd(),
            nursery: self.home.nursery().as_raw_fd(),
            children: self.children.alive.iter().map(save_child).collect(),
            objects: self.objects.by_id.iter().map(save_object).collect(),
            services: self.services.slots.iter().map(save_slot).collect(),
            connections: self.connections.open.iter().map(save_connection).collect(),
            asker: (asker.connection, asker.request),
            fault_points: self.fault_points.clone(),
        }
    }
}

fn save_child((pid, child): (&i32, &Child)) -> SavedChild {
    let (service, name) = match &child.owner {
        Owner::Object(name) => (false, name),
        Owner::Service(name) => (true, name),
    };
    SavedChild {
        pid: *pid,
        service,
        name: name.clone(),
        pidfd: child.pidfd.as_raw_fd(),
        channel: child.channel.as_ref().map(AsRawFd::as_raw_fd),
        report: child.report.clone(),
    }
}

fn save_object((object_id, object): (&String, &Object)) -> SavedObject {
    SavedObject {
        object_id: object_id.clone(),
        tag: object.tag.clone(),
        pid: object.pid,
        started_ns: object.started_ns,
        held: object.held.iter().map(|fd| fd.as_raw_fd()).collect(),
        live: object.has_live_process(),
        ended: match &object.state {
            State::Ended(ended) => Some(ended.clone()),
            _ => None,
        },
        entered: object.entered.clone(),
    }
}

fn save_slot(slot: &Slot) -> SavedSlot {
    let listeners = slot.listeners.iter();
    SavedSlot {
        definition: slot.definition.clone(),
        listeners: listeners
            .map(|listener| (listener.socket.as_raw_fd(), listener.address.clone()))
            .collect(),
        stage: match slot.stage {
            Stage::Down { due_ns } => SavedStage::Down(due_ns),
            Stage::Starting | Stage::Running => SavedStage::Running,
            Stage::Stopping { kill_ns } => SavedStage::Stopping(kill_ns),
            Stage::Stopped => SavedStage::Stopped,
        },
        pid: slot.pid,
        started_ns: slot.started_ns,
        restarts: slot.restarts,
        last_end: slot.last_end.clone(),
        askers: slot
            .askers
            .iter()
            .map(|asker| (asker.connection, asker.request))
            .collect(),
    }
}

fn save_connection((number, connection): (&u32, &Connection)) -> SavedConnection {
    let outgoing = connection.outgoing.iter().map(|packet| {
        let fds = packet.fds.iter().map(|fd| fd.as_raw_fd()).collect();
        (packet.bytes.clone(), fds)
    });
    SavedConnection {
        number: *number,
        socket: connection.socket.as_raw_fd(),
        role: connection.role.map(|role| match role {
            Role::Runtime => "runtime".to_owned(),
            Role::Control => "control".to_owned(),
            Role::Holder => "holder".to_owned(),
        }),
        outgoing: outgoing.collect(),
    }
}

/// The state in a memfd which survives an exec.
fn store(bytes: &[u8]) -> Result<OwnedFd, String> {
    let memfd = rustix::fs::memfd_create("keeper-state", MemfdFlags::empty())
        .map_err(|errno| format!("make room for the state: {errno}"))?;
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(&memfd, &bytes[done..], done as u64)
            .map_err(|errno| format!("write the state: {errno}"))?;
    }
    Ok(memfd)
}

/// Ask the program whether it can go on from this state, before there is no way back.
fn understands(program: &Path, state: &str) -> Result<(), String> {
    let refused = |why: String| format!("{} does not take over: {why}", program.display());
    let mut check = Command::new(program)
        .args(["--check", state])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| refused(error.to_string()))?;
    let ended = i32::try_from(check.id())
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| {
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            let limit = Timespec {
                tv_sec: CHECK_SECONDS,
                tv_nsec: 0,
            };
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).ok()
        });
    if ended != Some(1) {
        let _dead = check.kill();
    }
    match check.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(refused(status.to_string())),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Let descriptors survive an exec, or not.
fn keep_open(descriptors: &[i32], keep: bool) {
    let flags = if keep {
        FdFlags::empty()
    } else {
        FdFlags::CLOEXEC
    };
    for number in descriptors {
        // SAFETY: the keeper owns every descriptor of its state and closes none meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(*number) };
        let _open = rustix::io::fcntl_setfd(fd, flags);
    }
}

fn execute(program: &Path, state: &str) -> String {
    let strings = [
        CString::new(program.as_os_str().as_bytes()),
        CString::new("--resume"),
        CString::new(state),
    ];
    let [Ok(path), Ok(option), Ok(number)] = strings else {
        return "the program's path holds a zero byte".to_owned();
    };
    let argv = [
        path.as_ptr(),
        option.as_ptr(),
        number.as_ptr(),
        std::ptr::null(),
    ];
    // SAFETY: the array ends with a null pointer and points at strings that live across the call.
    unsafe { libc::execv(path.as_ptr(), argv.as_ptr()) };
    format!(
        "execute {}: {}",
        program.display(),
        std::io::Error::last_os_error()
    )
}
