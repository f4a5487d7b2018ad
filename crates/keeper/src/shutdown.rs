//! The orderly end: services in reverse order, then the sockets, then the keeper.

use dsec_proto::keeper::Answer;

use crate::connections::{refusal, Asker};
use crate::keeper::Keeper;
use crate::services::Stage;

impl Keeper {
    /// `Shutdown`. Refused while objects live.
    pub(crate) fn ask_shutdown(&mut self, asker: Asker) -> Result<(), String> {
        if self.objects.any_live() {
            let refused = refusal("live", "there are live objects");
            self.connections
                .reply(asker, Err(refused), Vec::new(), &self.poll);
            return Ok(());
        }
        self.begin_shutdown();
        if let Some(askers) = &mut self.shutdown {
            askers.push(asker);
        }
        Ok(())
    }

    /// SIGTERM: the same, whoever lives; nothing but services is touched.
    pub(crate) fn begin_shutdown(&mut self) {
        self.shutdown.get_or_insert_with(Vec::new);
        for slot in &mut self.services.slots {
            if let Stage::Down { .. } = slot.stage {
                slot.stage = Stage::Stopped;
            }
        }
    }

    /// Stop the last service that is not stopped; `true` when none is left.
    pub(crate) fn tend_shutdown(&mut self) -> bool {
        for position in (0..self.services.slots.len()).rev() {
            match self.services.slots[position].stage {
                Stage::Stopped | Stage::Down { .. } => {}
                Stage::Running | Stage::Starting => {
                    self.stop_service(position);
                    return false;
                }
                Stage::Stopping { .. } => return false,
            }
        }
        true
    }

    /// Answer, and take the socket files away.
    pub(crate) fn finish(&mut self) {
        for asker in self.shutdown.take().unwrap_or_default() {
            self.connections
                .reply(asker, Ok(Answer::Done), Vec::new(), &self.poll);
        }
        for slot in &self.services.slots {
            for listener in &slot.listeners {
                listener.remove_file();
            }
        }
        self.run_dir.remove_socket();
    }
}
