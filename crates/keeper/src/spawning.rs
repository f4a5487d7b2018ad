//! `Spawn`: from the request to a child, and from the child's fate to the answer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::keeper::{Ended, Message, Refusal, MAX_TAG};
use dsec_session::plan::{Failure, FdIndex, Plan};
use dsec_session::{check, launch};
use rustix::fs::SealFlags;

use crate::children::{Grant, Owner};
use crate::clock;
use crate::connections::{refusal, Asker};
use crate::keeper::Keeper;
use crate::objects::{Object, State, MAX_ID_BYTES};
use crate::proc_stat;

/// Longest plan in a memfd.
const MAX_PLAN_BYTES: u64 = 8 * 1024 * 1024;

/// The arguments of `Spawn`.
pub(crate) struct Spawn {
    pub(crate) object_id: String,
    pub(crate) tag: Vec<u8>,
    pub(crate) plan: Option<Box<Plan>>,
    pub(crate) plan_fd: Option<FdIndex>,
    pub(crate) held: Vec<FdIndex>,
}

impl Keeper {
    /// Start a spawn. The answer comes now when it is refused or known, else when the child has told.
    pub(crate) fn spawn(&mut self, asker: Asker, spawn: Spawn, fds: Vec<OwnedFd>) {
        if let Some(object) = self.objects.get_mut(&spawn.object_id) {
            let answer = match &mut object.state {
                State::SettingUp(askers) => return askers.push(asker),
                State::Kept => Err(refusal(
                    "invalid",
                    "an object without a process has this ID",
                )),
                State::Live | State::Ended(_) => Ok(object.spawned(true)),
            };
            return self
                .connections
                .reply(asker, answer, Vec::new(), &self.poll);
        }
        if let Err(refused) = self.try_spawn(asker, spawn, fds) {
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
        }
    }

    fn try_spawn(&mut self, asker: Asker, spawn: Spawn, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        check_name(&spawn.object_id, &spawn.tag)?;
        let invalid = |message: String| refusal("invalid", message);
        let plan = match (spawn.plan, spawn.plan_fd) {
            (Some(plan), None) => plan,
            (None, Some(index)) => read_plan(descriptor(&fds, index)?).map_err(invalid)?,
            _ => {
                return Err(refusal(
                    "invalid",
                    "a plan comes in the packet or in a memfd",
                ))
            }
        };
        check::check(&plan, fds.len()).map_err(invalid)?;
        for index in &spawn.held {
            descriptor(&fds, *index)?;
        }
        let entered = self.entered(&plan)?;
        fault!("keeper.spawn.checked");
        let launched = launch::launch(&self.home, &plan, &fds, &entered).map_err(|failure| {
            let gone = self.is_gone(check::objects(&plan).next());
            failed(failure, gone)
        })?;
        fault!("keeper.spawn.cloned");
        let pid = launched.pid;
        let started_ns = clock::now_ns();
        let fds: Vec<Rc<OwnedFd>> = fds.into_iter().map(Rc::new).collect();
        let chosen = |indices: &[FdIndex]| -> Vec<Rc<OwnedFd>> {
            indices
                .iter()
                .map(|index| Rc::clone(&fds[usize::from(*index)]))
                .collect()
        };
        let grant = check::resolving(&plan).map(|(start, owned)| Grant {
            start,
            owned: chosen(owned),
        });
        let object = Object {
            tag: spawn.tag,
            pid,
            started_ns,
            held: chosen(&spawn.held),
            state: State::SettingUp(vec![asker]),
            entered: check::objects(&plan).next().map(str::to_owned),
        };
        let owner = Owner::Object(spawn.object_id.clone());
        self.children.add(launched, owner, grant, &self.poll);
        self.objects.by_id.insert(spawn.object_id, object);
        fault!("keeper.spawn.booked");
        Ok(())
    }

    /// The pidfds of the objects that the plan enters.
    fn entered(&self, plan: &Plan) -> Result<BTreeMap<String, BorrowedFd<'_>>, Refusal> {
        check::objects(plan)
            .map(|object_id| {
                let object = self
                    .objects
                    .get(object_id)
                    .ok_or_else(|| refusal("unknown_object", format!("there is no {object_id}")))?;
                let child = (object.state == State::Live)
                    .then(|| self.children.alive.get(&object.pid))
                    .flatten()
                    .ok_or_else(|| refusal("gone", format!("{object_id} has no live process")))?;
                Ok((object_id.to_owned(), child.pidfd.as_fd()))
            })
            .collect()
    }

    /// Whether the object entered has ended, or is about to.
    fn is_gone(&self, entered: Option<&str>) -> bool {
        entered.is_some_and(|object_id| {
            self.objects.get(object_id).is_none_or(|object| {
                !object.has_live_process() || proc_stat::is_exiting(object.pid)
            })
        })
    }

    pub(crate) fn object_started(&mut self, object_id: &str, sent: Vec<OwnedFd>) {
        fault!("keeper.spawn.begun");
        let Some(object) = self.objects.get_mut(object_id) else {
            return;
        };
        let sent: Vec<_> = sent.into_iter().map(Rc::new).collect();
        object.held.extend(sent.iter().cloned());
        if let State::SettingUp(askers) = std::mem::replace(&mut object.state, State::Live) {
            for (position, asker) in askers.into_iter().enumerate() {
                let answer = Ok(object.spawned(position > 0));
                self.connections
                    .reply(asker, answer, sent.clone(), &self.poll);
            }
        }
    }

    /// A failed spawn leaves no object, unless nobody is left who could be told.
    pub(crate) fn object_failed(&mut self, object_id: &str, failure: Failure) {
        let Some(object) = self.objects.by_id.remove(object_id) else {
            return;
        };
        let gone = self.is_gone(object.entered.as_deref());
        let State::SettingUp(askers) = &object.state else {
            return;
        };
        let open = |asker: &&Asker| self.connections.open.contains_key(&asker.connection);
        let told: Vec<Asker> = askers.iter().filter(open).copied().collect();
        if told.is_empty() {
            let ended = Ended {
                exit_code: None,
                signal: None,
                ended_ns: clock::now_ns(),
                report: None,
                failure: Some(failure),
            };
            self.objects.by_id.insert(object_id.to_owned(), object);
            self.object_ended(object_id, ended);
            return;
        }
        for asker in told {
            let refused = failed(failure.clone(), gone);
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
        }
    }

    pub(crate) fn object_ended(&mut self, object_id: &str, end: Ended) {
        fault!("keeper.end.reaped");
        let Some(object) = self.objects.get_mut(object_id) else {
            return;
        };
        object.state = State::Ended(end.clone());
        if let Some(number) = self.connections.runtime() {
            let message = Message::Ended {
                object_id: object_id.to_owned(),
                end,
            };
            self.connections
                .queue(number, &message, Vec::new(), &self.poll);
            fault!("keeper.end.told");
        }
    }
}

/// Bounds of an ID and a tag.
pub(crate) fn check_name(object_id: &str, tag: &[u8]) -> Result<(), Refusal> {
    if object_id.is_empty() || object_id.len() > MAX_ID_BYTES {
        let message = format!("an object ID has 1 to {MAX_ID_BYTES} bytes");
        return Err(refusal("invalid", message));
    }
    if tag.len() > MAX_TAG {
        return Err(refusal(
            "invalid",
            format!("a tag has at most {MAX_TAG} bytes"),
        ));
    }
    Ok(())
}

pub(crate) fn descriptor(fds: &[OwnedFd], index: FdIndex) -> Result<&OwnedFd, Refusal> {
    fds.get(usize::from(index)).ok_or_else(|| {
        refusal(
            "invalid",
            format!("descriptor {index} did not come with the request"),
        )
    })
}

fn failed(failure: Failure, gone: bool) -> Refusal {
    let code = if gone { "gone" } else { "failed" };
    Refusal {
        code: code.to_owned(),
        message: format!("{}: {}", failure.step, failure.message),
        failure: Some(failure),
    }
}

/// A plan too long for a packet. The seals say that it will not change while it is read.
fn read_plan(memfd: &OwnedFd) -> Result<Box<Plan>, String> {
    let seals = rustix::fs::fcntl_get_seals(memfd).map_err(|errno| format!("plan: {errno}"))?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return Err("the memfd of a plan is sealed".to_owned());
    }
    let stat = rustix::fs::fstat(memfd).map_err(|errno| format!("plan: {errno}"))?;
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    if length > MAX_PLAN_BYTES {
        return Err(format!("a plan has at most {MAX_PLAN_BYTES} bytes"));
    }
    let mut bytes = vec![0_u8; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(memfd, &mut bytes[done..], done as u64) {
            Ok(0) => return Err("the plan is cut short".to_owned()),
            Ok(part) => done += part,
            Err(errno) => return Err(format!("plan: {errno}")),
        }
    }
    let plan = rmp_serde::from_slice(&bytes).map_err(|error| format!("plan: {error}"))?;
    Ok(Box::new(plan))
}
