//! What is done about each message: of the fetcher, and of runtimes. Nothing here waits.

use std::io;
use std::os::fd::OwnedFd;

use dsec_fault::fault;
use dsec_proto::loading::{FromFetcher, FromHolder, ToFetcher, ToHolder, VERSION};

use crate::holder::{Asker, Holder};
use crate::layer::Layer;
use crate::layers::Opened;
use crate::link::Link;

impl Holder {
    /// There is a fetcher: it is told of all layers and all that is waited for.
    pub fn has_fetcher(&mut self, link: Link) {
        self.fetcher = Some(link);
        self.ask(&ToFetcher::Hello { version: VERSION }, Vec::new());
        for number in self.layers.numbers() {
            self.show(number);
        }
        self.consider_all();
    }

    fn show(&mut self, number: u32) {
        let Some(layer) = self.layers.get_mut(number) else {
            return;
        };
        let digest = layer.digest.clone();
        match layer.parcel() {
            Ok(fds) => {
                let layer = number;
                let asked = self.ask(&ToFetcher::Layer { layer, digest }, fds);
                if let Some(layer) = self.layers.get_mut(number) {
                    layer.asked = asked;
                }
            }
            Err(error) => self.took(number, Some(error.to_string())),
        }
    }

    /// What the fetcher says.
    ///
    /// # Errors
    /// What the kernel or the keeper says.
    pub fn hear_fetcher(&mut self, said: FromFetcher) -> io::Result<()> {
        match said {
            FromFetcher::Hello { version } if version == VERSION => {}
            FromFetcher::Hello { version } => {
                self.lost_fetcher(&io::Error::other(format!("it speaks version {version}")));
            }
            FromFetcher::Took { layer, refused } => self.took(layer, refused),
            FromFetcher::Done { id, errno } => {
                fault!("holder.event.done");
                self.done(id, errno)?;
            }
            FromFetcher::Complete { layer } => {
                if self.layers.complete(&mut self.keeper, &self.group, layer)? {
                    self.let_through(layer)?;
                    fault!("holder.complete.let_through");
                    self.layers.close(&mut self.keeper, &self.group, layer)?;
                    fault!("holder.complete.closed");
                    self.ask(&ToFetcher::Drop { layer }, Vec::new());
                }
            }
            FromFetcher::Fetched { layer, fetched } => {
                self.count(layer, |tally| tally.fetched(&fetched));
            }
        }
        Ok(())
    }

    fn took(&mut self, number: u32, refused: Option<String>) {
        let Some(layer) = self.layers.get_mut(number) else {
            return;
        };
        let askers = self.opening.remove(&number).unwrap_or_default();
        layer.asked = false;
        layer.took = refused.is_none();
        layer.may_be_mounted |= layer.took;
        if let Some(reason) = &refused {
            tracing::error!(layer = layer.digest, "cannot be filled: {reason}");
            // Mounted, it stays as it is: what is there can be read, and what is not is an error.
            if !layer.may_be_mounted {
                if let Err(error) = self.layers.close(&mut self.keeper, &self.group, number) {
                    tracing::error!("a layer cannot be closed: {error}");
                }
            }
        }
        fault!("holder.layer.taken");
        for (link, turn) in askers {
            let answer = match refused.clone() {
                None => FromHolder::Opened {
                    turn,
                    layer: Some(number),
                },
                Some(reason) => FromHolder::Refused { turn, reason },
            };
            self.tell(link, &answer);
        }
    }

    fn tell(&mut self, link: u64, message: &FromHolder) {
        let link_to = self.runtimes.get_mut(&link);
        let told = link_to.map(|link| link.tell(message, Vec::new()));
        if let Some(Err(error)) = told {
            tracing::warn!("a runtime is gone: {error}");
            self.runtimes.remove(&link);
        }
    }

    /// What a runtime says.
    ///
    /// # Errors
    /// What the kernel or the keeper says.
    pub fn hear_runtime(
        &mut self,
        link: u64,
        said: ToHolder,
        mut fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        match said {
            ToHolder::Hello { .. } => self.tell(link, &FromHolder::Hello { version: VERSION }),
            ToHolder::Open { turn, digest } => match fds.pop() {
                Some(directory) => self.open((link, turn), &digest, directory),
                None => {
                    let reason = "it came without its directory".to_owned();
                    self.tell(link, &FromHolder::Refused { turn, reason });
                }
            },
            ToHolder::Close {
                turn,
                layer,
                digest,
            } => {
                let of_it = |found: &mut Layer| found.digest == digest;
                if self.layers.get_mut(layer).is_some_and(of_it) {
                    self.layers.close(&mut self.keeper, &self.group, layer)?;
                    self.ask(&ToFetcher::Drop { layer }, Vec::new());
                }
                self.tell(link, &FromHolder::Closed { turn });
            }
            ToHolder::Ask { turn, after } => {
                let going = self.going(after);
                self.tell(link, &FromHolder::Going { turn, going });
            }
        }
        Ok(())
    }

    fn open(&mut self, asker: Asker, digest: &str, directory: OwnedFd) {
        let (link, turn) = asker;
        let opened = self
            .layers
            .open(&mut self.keeper, &self.group, digest, directory);
        match opened {
            Ok(Opened::Complete) => self.tell(link, &FromHolder::Opened { turn, layer: None }),
            Ok(Opened::Known(number)) => {
                let layer = self.layers.get_mut(number);
                let (took, asked) = layer.map_or((false, false), |layer| (layer.took, layer.asked));
                if took {
                    let layer = Some(number);
                    self.tell(link, &FromHolder::Opened { turn, layer });
                } else {
                    self.opening.entry(number).or_default().push(asker);
                    // Refused before, it may be right by now.
                    if !asked {
                        self.show(number);
                    }
                }
            }
            Ok(Opened::New(number)) => {
                self.opening.entry(number).or_default().push(asker);
                self.show(number);
            }
            Err(error) => {
                let reason = error.to_string();
                self.tell(link, &FromHolder::Refused { turn, reason });
            }
        }
    }
}
