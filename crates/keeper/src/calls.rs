//! What peers ask, one function a call.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::keeper::{Answer, Call, Refusal, Request, VERSION};
use dsec_session::plan::FdIndex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::connections::{refusal, Asker, Role};
use crate::keeper::Keeper;
use crate::objects::{Object, State};
use crate::process;
use crate::spawning::{check_name, descriptor, Spawn};

/// Objects that are forgotten before their memory goes back to the kernel: every child is cloned with a copy of the heap.
const RELEASED_MOST: usize = 1024;

type Answered = Result<Answer, Refusal>;

impl Keeper {
    /// Carry out one packet. What is no request closes its connection.
    pub(crate) fn take_packet(
        &mut self,
        number: u32,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let request: Request = rmp_serde::from_slice(bytes).map_err(|error| error.to_string())?;
        let asker = Asker {
            connection: number,
            request: request.id,
        };
        let role = self
            .connections
            .open
            .get(&number)
            .and_then(|open| open.role);
        let answer = match (request.call, role) {
            (Call::Hello { version, role }, None) => self.hello(number, version, &role),
            (_, None) => return Err("the first message is no hello".to_owned()),
            (Call::Hello { .. }, Some(_)) => Err(refusal("invalid", "hello comes once")),
            (Call::Services, _) => Ok(Answer::Services(self.services.shown())),
            (Call::List { after }, Some(role)) => {
                Ok(self.objects.page(after.as_deref(), |id| role.sees(id)))
            }
            (Call::Shutdown, _) => return self.ask_shutdown(asker),
            (
                Call::Restart {
                    service,
                    definition,
                },
                _,
            ) => {
                self.ask_restart(asker, &service, definition);
                return Ok(());
            }
            (_, Some(Role::Control)) => Err(refusal("invalid", "only the runtime may ask this")),
            (call, Some(role)) => return self.take_object_call(asker, role, call, fds),
        };
        self.connections
            .reply(asker, answer, Vec::new(), &self.poll);
        Ok(())
    }

    fn take_object_call(
        &mut self,
        asker: Asker,
        role: Role,
        call: Call,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        if let Err(refused) = may(role, &call) {
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
            return Ok(());
        }
        let mut sent = Vec::new();
        let answer = match call {
            Call::Spawn {
                object_id,
                tag,
                plan,
                plan_fd,
                held,
            } => {
                let spawn = Spawn {
                    object_id,
                    tag,
                    plan,
                    plan_fd,
                    held,
                };
                self.spawn(asker, spawn, fds);
                return Ok(());
            }
            Call::Put {
                object_id,
                tag,
                held,
            } => self.put(object_id, tag, &held, fds),
            Call::Retag { object_id, tag } => self.retag(&object_id, tag),
            Call::Fetch { object_id } => self.object(&object_id).map(|object| {
                sent.clone_from(&object.held);
                Answer::Done
            }),
            Call::Ack { object_ids } => self.ack(&object_ids),
            Call::Signal {
                object_id,
                signal,
                group,
            } => self.signal(&object_id, signal, group),
            other => return Err(format!("{other:?} was not expected")),
        };
        self.connections.reply(asker, answer, sent, &self.poll);
        Ok(())
    }

    fn hello(&mut self, number: u32, version: u32, role: &str) -> Answered {
        if version != VERSION {
            let message = format!("the keeper speaks version {VERSION}, not {version}");
            return Err(refusal("version", message));
        }
        let role = match role {
            "runtime" => Role::Runtime,
            "holder" => Role::Holder,
            "control" => Role::Control,
            other => return Err(refusal("invalid", format!("there is no role {other:?}"))),
        };
        if role != Role::Control && self.connections.of(role).is_some() {
            return Err(refusal("busy", "another one of this role is connected"));
        }
        if let Some(open) = self.connections.open.get_mut(&number) {
            open.role = Some(role);
        }
        Ok(Answer::Hello {
            version: VERSION,
            pid: rustix::process::getpid().as_raw_nonzero().get(),
        })
    }

    fn put(
        &mut self,
        object_id: String,
        tag: Vec<u8>,
        held: &[FdIndex],
        fds: Vec<OwnedFd>,
    ) -> Answered {
        check_name(&object_id, &tag)?;
        if self
            .objects
            .get(&object_id)
            .is_some_and(|object| object.state != State::Kept)
        {
            return Err(refusal("invalid", "an object with a process has this ID"));
        }
        for index in held {
            descriptor(&fds, *index)?;
        }
        let fds: Vec<Rc<OwnedFd>> = fds.into_iter().map(Rc::new).collect();
        let object = Object {
            tag,
            pid: 0,
            started_ns: crate::clock::now_ns(),
            held: held
                .iter()
                .map(|index| Rc::clone(&fds[usize::from(*index)]))
                .collect(),
            state: State::Kept,
            entered: None,
        };
        self.objects.by_id.insert(object_id, object);
        fault!("keeper.put.kept");
        Ok(Answer::Done)
    }

    fn retag(&mut self, object_id: &str, tag: Vec<u8>) -> Answered {
        check_name(object_id, &tag)?;
        match self.objects.get_mut(object_id) {
            Some(object) => {
                object.tag = tag;
                fault!("keeper.retag.kept");
                Ok(Answer::Done)
            }
            None => Err(unknown(object_id)),
        }
    }

    fn object(&self, object_id: &str) -> Result<&Object, Refusal> {
        self.objects
            .get(object_id)
            .ok_or_else(|| unknown(object_id))
    }

    /// Forget objects; all or none. One that is unknown was forgotten before.
    fn ack(&mut self, object_ids: &[String]) -> Answered {
        let live = |object_id: &&String| {
            self.objects
                .get(object_id)
                .is_some_and(Object::has_live_process)
        };
        if let Some(object_id) = object_ids.iter().find(live) {
            return Err(refusal("not_ended", format!("{object_id} lives")));
        }
        fault!("keeper.ack.asked");
        for object_id in object_ids {
            self.objects.by_id.remove(object_id);
        }
        fault!("keeper.ack.forgotten");
        self.objects.released += object_ids.len();
        if self.objects.released >= RELEASED_MOST {
            self.objects.released = 0;
            process::trim_heap();
        }
        Ok(Answer::Done)
    }

    fn signal(&self, object_id: &str, signal: i32, group: bool) -> Answered {
        let object = self.object(object_id)?;
        let named = Signal::from_named_raw(signal)
            .or_else(|| realtime(signal))
            .ok_or_else(|| refusal("invalid", format!("{signal} is no signal")))?;
        let child = object
            .has_live_process()
            .then(|| self.children.alive.get(&object.pid))
            .flatten()
            .ok_or_else(|| refusal("ended", format!("{object_id} has no live process")))?;
        // The PID is the child's until the keeper waits for it, so its group is the right one.
        let leader = Pid::from_raw(object.pid).filter(|_| group);
        let sent = match leader.map(|pid| rustix::process::kill_process_group(pid, named)) {
            None | Some(Err(Errno::SRCH)) => {
                rustix::process::pidfd_send_signal(&child.pidfd, named)
            }
            Some(result) => result,
        };
        fault!("keeper.signal.sent");
        match sent {
            Ok(()) => Ok(Answer::Done),
            Err(Errno::SRCH) => Err(refusal("ended", format!("{object_id} has just ended"))),
            Err(errno) => Err(refusal("invalid", format!("signal {signal}: {errno}"))),
        }
    }
}

/// Nobody touches another's objects, and the holder has no processes.
fn may(role: Role, call: &Call) -> Result<(), Refusal> {
    let (objects, process): (&[String], bool) = match call {
        Call::Put { object_id, .. } | Call::Fetch { object_id } => {
            (std::slice::from_ref(object_id), false)
        }
        Call::Ack { object_ids } => (object_ids, false),
        Call::Spawn { object_id, .. }
        | Call::Retag { object_id, .. }
        | Call::Signal { object_id, .. } => (std::slice::from_ref(object_id), true),
        _ => (&[], false),
    };
    if process && role == Role::Holder || objects.iter().any(|object_id| !role.sees(object_id)) {
        return Err(refusal("invalid", "this is not its caller's to ask"));
    }
    Ok(())
}

/// A real-time signal, those that the C library keeps for itself left out.
fn realtime(signal: i32) -> Option<Signal> {
    // SAFETY: a number that the kernel knows; it is only sent, to a process of another program.
    (34..=64)
        .contains(&signal)
        .then(|| unsafe { Signal::from_raw_unchecked(signal) })
}

fn unknown(object_id: &str) -> Refusal {
    refusal("unknown_object", format!("there is no {object_id}"))
}
