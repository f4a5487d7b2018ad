//! The service table: starting, restarting after a death, stopping.

use dsec_fault::fault;
use dsec_proto::keeper::{Ended, Service, ServiceState};
use dsec_session::launch;
use dsec_session::plan::Failure;
use rustix::process::{pidfd_send_signal, Signal};
use serde_json::json;

use crate::backoff::Backoff;
use crate::children::Owner;
use crate::clock;
use crate::connections::Asker;
use crate::keeper::Keeper;
use crate::listeners::Listener;
use crate::note;
use crate::service_plan;

/// How long SIGTERM has before SIGKILL.
const GRACE_NS: u64 = 5_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not running; due at this time.
    Down {
        due_ns: u64,
    },
    /// Cloned, not yet executed.
    Starting,
    Running,
    /// Told to end; killed at this time.
    Stopping {
        kill_ns: u64,
    },
    /// Not running, and not to be started.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) definition: Service,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) stage: Stage,
    pub(crate) pid: i32,
    pub(crate) started_ns: u64,
    pub(crate) restarts: u32,
    pub(crate) last_end: Option<Ended>,
    pub(crate) backoff: Backoff,
    /// Told when the service runs again.
    pub(crate) askers: Vec<Asker>,
    /// Why the latest start failed.
    pub(crate) failure: Option<Failure>,
}

impl Slot {
    pub(crate) fn new(definition: Service, listeners: Vec<Listener>) -> Self {
        Self {
            definition,
            listeners,
            stage: Stage::Down { due_ns: 0 },
            pid: 0,
            started_ns: 0,
            restarts: 0,
            last_end: None,
            backoff: Backoff::default(),
            askers: Vec::new(),
            failure: None,
        }
    }

    pub(crate) fn shown(&self) -> ServiceState {
        ServiceState {
            name: self.definition.name.clone(),
            pid: self.pid,
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            addresses: self
                .listeners
                .iter()
                .map(|listener| listener.address.clone())
                .collect(),
        }
    }

    /// When the loop must look at this service again.
    fn due(&self) -> Option<u64> {
        match self.stage {
            Stage::Down { due_ns } => Some(due_ns),
            Stage::Stopping { kill_ns } => Some(kill_ns),
            Stage::Starting | Stage::Running | Stage::Stopped => None,
        }
    }

    /// Down until its turn comes again.
    fn fall(&mut self, lived_ns: u64) {
        let delay = self.backoff.after(lived_ns);
        self.pid = 0;
        self.stage = Stage::Down {
            due_ns: clock::now_ns() + delay,
        };
    }
}

/// All of them, in starting order.
#[derive(Debug, Default)]
pub(crate) struct Services {
    pub(crate) slots: Vec<Slot>,
}

impl Services {
    pub(crate) fn named(&mut self, name: &str) -> Option<&mut Slot> {
        self.slots
            .iter_mut()
            .find(|slot| slot.definition.name == name)
    }

    pub(crate) fn shown(&self) -> Vec<ServiceState> {
        self.slots.iter().map(Slot::shown).collect()
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.slots.iter().filter_map(Slot::due).min()
    }
}

impl Keeper {
    /// Do what is due: starts after a delay, kills after the grace.
    pub(crate) fn tend_services(&mut self) {
        let now = clock::now_ns();
        for position in 0..self.services.slots.len() {
            match self.services.slots[position].stage {
                Stage::Down { due_ns } if due_ns <= now => self.start_service(position),
                Stage::Stopping { kill_ns } if kill_ns <= now => {
                    self.signal_service(position, Signal::KILL);
                    self.services.slots[position].stage = Stage::Stopping {
                        kill_ns: now + GRACE_NS,
                    };
                }
                _ => {}
            }
        }
    }

    fn start_service(&mut self, position: usize) {
        let slot = &mut self.services.slots[position];
        let launched =
            service_plan::build(&slot.definition, &slot.listeners).and_then(|(plan, fds)| {
                launch::launch(&self.home, &plan, &fds, &std::collections::BTreeMap::new())
            });
        match launched {
            Ok(launched) => {
                fault!("keeper.service.cloned");
                slot.pid = launched.pid;
                slot.started_ns = clock::now_ns();
                slot.stage = Stage::Starting;
                let owner = Owner::Service(slot.definition.name.clone());
                self.children.add(launched, owner, None, &self.poll);
            }
            Err(failure) => {
                let name = slot.definition.name.clone();
                self.service_failed(&name, failure);
            }
        }
    }

    pub(crate) fn signal_service(&self, position: usize, signal: Signal) {
        let pid = self.services.slots[position].pid;
        if let Some(child) = self.children.alive.get(&pid) {
            let _dead = pidfd_send_signal(&child.pidfd, signal);
        }
    }

    /// Ask a service to end; it is killed when it does not.
    pub(crate) fn stop_service(&mut self, position: usize) {
        self.signal_service(position, Signal::TERM);
        self.services.slots[position].stage = Stage::Stopping {
            kill_ns: clock::now_ns() + GRACE_NS,
        };
    }

    pub(crate) fn service_started(&mut self, name: &str) {
        let Some(slot) = self.services.named(name) else {
            return;
        };
        slot.failure = None;
        if slot.stage == Stage::Starting {
            slot.stage = Stage::Running;
        }
        for asker in std::mem::take(&mut slot.askers) {
            let done = Ok(dsec_proto::keeper::Answer::Done);
            self.connections.reply(asker, done, Vec::new(), &self.poll);
        }
    }

    /// It could not be executed: told to those who wait, and tried again later.
    pub(crate) fn service_failed(&mut self, name: &str, failure: Failure) {
        let stopping = self.shutdown.is_some();
        let Some(slot) = self.services.named(name) else {
            return;
        };
        note::event(
            "service_failed",
            json!({"service": name, "step": failure.step, "errno": failure.errno, "message": failure.message}),
        );
        slot.failure = Some(failure.clone());
        slot.fall(0);
        if stopping {
            slot.stage = Stage::Stopped;
        }
        for asker in std::mem::take(&mut slot.askers) {
            let refused = dsec_proto::keeper::Refusal {
                code: "failed".to_owned(),
                message: format!("{name}: {}: {}", failure.step, failure.message),
                failure: Some(failure.clone()),
            };
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
        }
    }

    pub(crate) fn service_ended(&mut self, name: &str, end: Ended) {
        let stopping = self.shutdown.is_some();
        let Some(slot) = self.services.named(name) else {
            return;
        };
        fault!("keeper.service.ended");
        let wanted = matches!(slot.stage, Stage::Stopping { .. });
        let lived_ns = end.ended_ns.saturating_sub(slot.started_ns);
        note::event(
            "service_ended",
            json!({"service": name, "pid": slot.pid, "exit_code": end.exit_code, "signal": end.signal, "asked": wanted}),
        );
        slot.last_end = Some(end);
        slot.fall(lived_ns);
        if stopping {
            slot.stage = Stage::Stopped;
        } else if wanted {
            slot.backoff = Backoff::default();
            slot.stage = Stage::Down { due_ns: 0 };
        } else {
            slot.restarts += 1;
        }
    }
}
