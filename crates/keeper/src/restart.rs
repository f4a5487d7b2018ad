//! `Restart`: a service by its (new) definition, or the keeper itself in place.

use dsec_proto::keeper::{Refusal, Service};

use crate::connections::{refusal, Asker};
use crate::keeper::Keeper;
use crate::listeners::Listener;
use crate::services::{Slot, Stage};

impl Keeper {
    pub(crate) fn ask_restart(
        &mut self,
        asker: Asker,
        name: &str,
        definition: Option<Box<Service>>,
    ) {
        let asked = if self.shutdown.is_some() {
            Err(refusal("busy", "the keeper is ending"))
        } else if name == "keeper" {
            let program = definition.and_then(|new| new.argv.into_iter().next());
            self.ask_reexec(asker, program)
        } else {
            self.restart_service(asker, name, definition)
        };
        if let Err(refused) = asked {
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
        }
    }

    fn restart_service(
        &mut self,
        asker: Asker,
        name: &str,
        definition: Option<Box<Service>>,
    ) -> Result<(), Refusal> {
        let position = self
            .services
            .slots
            .iter()
            .position(|slot| slot.definition.name == name)
            .ok_or_else(|| refusal("invalid", format!("there is no service {name:?}")))?;
        let slot = &mut self.services.slots[position];
        if let Some(new) = definition {
            renew(slot, *new)?;
        }
        slot.askers.push(asker);
        match slot.stage {
            Stage::Running | Stage::Starting => self.stop_service(position),
            Stage::Down { .. } | Stage::Stopped => slot.stage = Stage::Down { due_ns: 0 },
            Stage::Stopping { .. } => {}
        }
        Ok(())
    }
}

/// Take the new definition; sockets that stay the same stay open.
fn renew(slot: &mut Slot, new: Service) -> Result<(), Refusal> {
    if new.name != slot.definition.name {
        return Err(refusal("invalid", "a service keeps its name"));
    }
    if new.argv.is_empty() {
        return Err(refusal("invalid", "a service has a program"));
    }
    let mut listeners = Vec::with_capacity(new.listen.len());
    for spec in &new.listen {
        let present = slot
            .listeners
            .iter()
            .find(|listener| listener.spec == *spec);
        let listener = match present {
            Some(listener) => listener.clone(),
            None => Listener::open(spec).map_err(|error| refusal("invalid", error.message))?,
        };
        listeners.push(listener);
    }
    for old in &slot.listeners {
        if !new.listen.contains(&old.spec) {
            old.remove_file();
        }
    }
    slot.listeners = listeners;
    slot.definition = new;
    Ok(())
}
