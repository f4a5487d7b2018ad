//! The other side of the exec in place: the state becomes a keeper again.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::keeper::Answer;
use dsec_session::home::Home;
use rustix::io::FdFlags;

use crate::backoff::Backoff;
use crate::children::{Child, Owner, Stage as ChildStage};
use crate::connections::{Asker, Connection, Outgoing, Role};
use crate::keeper::Keeper;
use crate::listeners::Listener;
use crate::note::StartError;
use crate::objects::{Object, State};
use crate::poll::Token;
use crate::run_dir::RunDir;
use crate::saved::{Saved, SavedChild, SavedConnection, SavedObject, SavedSlot, SavedStage};
use crate::services::{Slot, Stage};
use crate::start;

/// Longest state read.
const MAX_STATE_BYTES: usize = 1 << 30;

/// Descriptors by number, each taken over once and shared where the old keeper shared it.
struct Taken(BTreeMap<i32, Rc<OwnedFd>>);

impl Taken {
    /// One that only one place owns.
    fn sole(number: i32) -> OwnedFd {
        // SAFETY: the old keeper left this descriptor open for us, and named it as nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        let _open = rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC);
        fd
    }

    fn shared(&mut self, number: i32) -> Rc<OwnedFd> {
        let fd = self
            .0
            .entry(number)
            .or_insert_with(|| Rc::new(Self::sole(number)));
        Rc::clone(fd)
    }

    fn all_shared(&mut self, numbers: Vec<i32>) -> Vec<Rc<OwnedFd>> {
        numbers
            .into_iter()
            .map(|number| self.shared(number))
            .collect()
    }
}

/// Read the state that the old keeper left in a memfd.
pub(crate) fn read_state(number: i32) -> Result<Saved, StartError> {
    let failed = |reason: String| StartError::failed("state", number.to_string(), reason);
    // SAFETY: the number comes from the old keeper, which keeps the memfd open; it is only borrowed.
    let memfd = unsafe { BorrowedFd::borrow_raw(number) };
    let mut bytes = Vec::new();
    let mut part = vec![0_u8; 64 * 1024];
    loop {
        let length = rustix::io::pread(memfd, &mut part, bytes.len() as u64)
            .map_err(|errno| failed(errno.to_string()))?;
        bytes.extend_from_slice(&part[..length]);
        if length == 0 || bytes.len() > MAX_STATE_BYTES {
            return Saved::decode(&bytes).map_err(failed);
        }
    }
}

/// Become the keeper that the state describes, and answer who asked for it.
pub(crate) fn resume(number: i32) -> Result<Keeper, StartError> {
    let saved = read_state(number)?;
    start::arm(saved.fault_points.as_deref())?;
    fault!("keeper.reexec.executed");
    drop(Taken::sole(number));
    let run_dir = RunDir {
        path: PathBuf::from(&saved.run_dir),
        lock: Taken::sole(saved.lock),
        listener: Taken::sole(saved.listener),
    };
    let failed = |errno: rustix::io::Errno| {
        StartError::failed("resume", saved.run_dir.clone(), errno.to_string())
    };
    let home = Home::resume(Taken::sole(saved.nursery)).map_err(start::home_failed)?;
    let mut keeper = Keeper::new(run_dir, home).map_err(failed)?;
    let mut taken = Taken(BTreeMap::new());
    for child in saved.children {
        add_child(&mut keeper, child).map_err(failed)?;
    }
    for object in saved.objects {
        let (object_id, object) = restore_object(object, &mut taken);
        keeper.objects.by_id.insert(object_id, object);
    }
    keeper.services.slots = saved
        .services
        .into_iter()
        .map(|slot| restore_slot(slot, &mut taken))
        .collect();
    for connection in saved.connections {
        let (number, connection) = restore_connection(connection, &mut taken);
        keeper.connections.add(number, connection, &keeper.poll);
    }
    keeper.fault_points = saved.fault_points;
    fault!("keeper.reexec.resumed");
    keeper.connections.reply(
        asker(saved.asker),
        Ok(Answer::Done),
        Vec::new(),
        &keeper.poll,
    );
    // Signals that came between the two programs may have been read by the old one.
    keeper.reap();
    Ok(keeper)
}

fn asker((connection, request): (u32, u64)) -> Asker {
    Asker {
        connection,
        request,
    }
}

fn add_child(keeper: &mut Keeper, saved: SavedChild) -> Result<(), rustix::io::Errno> {
    let channel = saved.channel.map(Taken::sole);
    if let Some(channel) = &channel {
        keeper.poll.add(channel, Token::Channel(saved.pid))?;
    }
    let child = Child {
        owner: if saved.service {
            Owner::Service(saved.name)
        } else {
            Owner::Object(saved.name)
        },
        pidfd: Taken::sole(saved.pidfd),
        channel,
        stage: ChildStage::Running,
        grant: None,
        report: saved.report,
        sent: Vec::new(),
    };
    keeper.children.alive.insert(saved.pid, child);
    Ok(())
}

fn restore_object(saved: SavedObject, taken: &mut Taken) -> (String, Object) {
    let state = match (saved.ended, saved.live) {
        (Some(ended), _) => State::Ended(ended),
        (None, true) => State::Live,
        (None, false) => State::Kept,
    };
    let object = Object {
        tag: saved.tag,
        pid: saved.pid,
        started_ns: saved.started_ns,
        held: taken.all_shared(saved.held),
        state,
        entered: saved.entered,
    };
    (saved.object_id, object)
}

fn restore_slot(saved: SavedSlot, taken: &mut Taken) -> Slot {
    let specs = saved.definition.listen.clone();
    let listeners = specs
        .into_iter()
        .zip(saved.listeners)
        .map(|(spec, (number, address))| Listener {
            spec,
            socket: taken.shared(number),
            address,
        });
    Slot {
        listeners: listeners.collect(),
        definition: saved.definition,
        stage: match saved.stage {
            SavedStage::Down(due_ns) => Stage::Down { due_ns },
            SavedStage::Running => Stage::Running,
            SavedStage::Stopping(kill_ns) => Stage::Stopping { kill_ns },
            SavedStage::Stopped => Stage::Stopped,
        },
        pid: saved.pid,
        started_ns: saved.started_ns,
        restarts: saved.restarts,
        last_end: saved.last_end,
        backoff: Backoff::default(),
        askers: saved.askers.into_iter().map(asker).collect(),
        failure: None,
    }
}

fn restore_connection(saved: SavedConnection, taken: &mut Taken) -> (u32, Connection) {
    let outgoing = saved.outgoing.into_iter().map(|(bytes, fds)| Outgoing {
        bytes,
        fds: taken.all_shared(fds),
    });
    let connection = Connection {
        outgoing: outgoing.collect(),
        wanted: (true, false),
        socket: Taken::sole(saved.socket),
        role: saved.role.map(|role| match role.as_str() {
            "runtime" => Role::Runtime,
            "holder" => Role::Holder,
            _ => Role::Control,
        }),
    };
    (saved.number, connection)
}
