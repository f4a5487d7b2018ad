//! What is done about each event and each message. Nothing here waits.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dsec_proto::loading::{Counts, FromFetcher, FromHolder, ToFetcher, ToHolder, VERSION};

use crate::counts::{now_ns, waited};
use crate::fan::Group;
use crate::journal::Journal;
use crate::keeper::Keeper;
use crate::layers::{Layers, Opened};
use crate::link::Link;
use crate::table;

/// What the group and the journal are kept as.
const GROUP: &str = "holder/group";
/// The fetcher gives up long before; this bound holds when there is none.
const LONGEST_NS: u64 = 120_000_000_000;
/// How often events are taken before a complete layer is closed: readers of others might go on asking for ever.
const ROUNDS: usize = 16;
const TICK_NS: u64 = 1_000_000_000;
const EIO: Option<u8> = Some(libc::EIO as u8);

/// Somebody who waits for a layer to be opened: a link's number, and the turn.
type Asker = (u64, u64);

/// The state of the process.
#[derive(Debug)]
pub struct Holder {
    /// The event group.
    pub group: Group,
    /// Open events.
    pub journal: Journal,
    /// The keeper.
    pub keeper: Keeper,
    /// The fetcher, while it lives.
    pub fetcher: Option<Link>,
    /// Runtimes, by number.
    pub runtimes: HashMap<u64, Link>,
    layers: Layers,
    /// Journal slots by the number of what the fetcher was asked, and how many answers are still to come for a slot.
    wants: HashMap<u64, usize>,
    next: u64,
    opening: HashMap<u32, Vec<Asker>>,
    counts: Counts,
    /// When it was last looked for what is late.
    looked_ns: u64,
}

impl Holder {
    /// A new group, or what a dead holder left with the keeper.
    ///
    /// # Errors
    /// What the kernel or the keeper says.
    pub fn begin(mut keeper: Keeper) -> io::Result<Self> {
        let (group, journal) = match keeper.fetch(GROUP) {
            Ok(fds) => take_up(fds)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&mut keeper)?,
            Err(error) => return Err(error),
        };
        let layers = Layers::take_up(&mut keeper, &group).inspect_err(|_| keeper.outlive())?;
        tracing::info!(open = journal.open_count(), "holding");
        Ok(Self {
            group,
            journal,
            keeper,
            fetcher: None,
            runtimes: HashMap::new(),
            layers,
            wants: HashMap::new(),
            next: 1,
            opening: HashMap::new(),
            counts: Counts::default(),
            looked_ns: 0,
        })
    }

    /// Takes events that wait in the kernel. Returns how many.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take_events(&mut self) -> io::Result<usize> {
        let layers = &self.layers;
        let mut layer_of = |event: &crate::fan::Event| layers.of_event(event.fd);
        let added = self.journal.take(&self.group, now_ns(), &mut layer_of)?;
        for slot in &added {
            self.consider(*slot, true)?;
        }
        Ok(added.len())
    }

    /// Answers all that was asked of a complete layer before its mark went, while it is known whose file that is: a
    /// successor could not tell, and would refuse it.
    fn let_through(&mut self, number: u32) -> io::Result<()> {
        for _ in 0..ROUNDS {
            if self.take_events()? == 0 {
                break;
            }
        }
        let entries = self.journal.entries();
        let of_it = entries.filter(|(_, entry)| entry.layer == number);
        let slots: Vec<usize> = of_it.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.consider(slot, false)?;
        }
        Ok(())
    }

    /// Answers an entry if its range is there, or asks the fetcher.
    fn consider(&mut self, slot: usize, new: bool) -> io::Result<()> {
        let Some(entry) = self.journal.entry(slot) else {
            return Ok(());
        };
        match self.layers.is_there(&entry) {
            Some(true) if new => {
                self.counts.hits += 1;
                self.settle(slot, None)
            }
            Some(true) => {
                waited(&mut self.counts, now_ns().saturating_sub(entry.since_ns));
                self.settle(slot, None)
            }
            None => self.settle(slot, EIO),
            Some(false) => {
                self.want(slot);
                Ok(())
            }
        }
    }

    fn settle(&mut self, slot: usize, errno: Option<u8>) -> io::Result<()> {
        if let Some(entry) = self.journal.entry(slot) {
            if errno.is_some() {
                self.counts.denied += 1;
            }
            self.group.answer(entry.event.fd, errno)?;
            self.journal.clear(slot);
            // What is still to come for this event is not for the next one of the slot.
            self.wants.retain(|_, of| *of != slot);
            table::release(entry.event.fd);
        }
        Ok(())
    }

    fn want(&mut self, slot: usize) {
        let Some(entry) = self.journal.entry(slot) else {
            return;
        };
        for layer in self.layers.concerned(&entry) {
            let id = self.next;
            self.next += 1;
            let want = ToFetcher::Want {
                id,
                layer,
                offset: entry.event.offset,
                length: entry.event.length,
                waited_ms: now_ns().saturating_sub(entry.since_ns) / 1_000_000,
            };
            if self.ask(&want, Vec::new()) {
                self.wants.insert(id, slot);
            }
        }
    }

    /// Says something to the fetcher; one that comes later is told everything.
    fn ask(&mut self, message: &ToFetcher, fds: Vec<OwnedFd>) -> bool {
        let told = self.fetcher.as_mut().map(|link| link.tell(message, fds));
        match told {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                self.lost_fetcher(&error);
                false
            }
            None => false,
        }
    }

    /// There is a fetcher: it is told of all layers and all that is waited for.
    pub fn has_fetcher(&mut self, link: Link) {
        self.fetcher = Some(link);
        self.ask(&ToFetcher::Hello { version: VERSION }, Vec::new());
        for number in self.layers.numbers() {
            self.show(number);
        }
        let slots: Vec<usize> = self.journal.entries().map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Err(error) = self.consider(slot, false) {
                tracing::error!("an event cannot be answered: {error}");
            }
        }
    }

    /// The fetcher is gone; readers wait for the next one.
    pub fn lost_fetcher(&mut self, why: &io::Error) {
        tracing::warn!("the fetcher is gone: {why}");
        self.fetcher = None;
        self.wants.clear();
    }

    fn show(&mut self, number: u32) {
        match self.layers.parcel(number) {
            Ok(Some((digest, fds))) => {
                let asked = self.ask(
                    &ToFetcher::Layer {
                        layer: number,
                        digest,
                    },
                    fds,
                );
                if let Some(layer) = self.layers.get_mut(number) {
                    layer.asked = asked;
                }
            }
            Ok(None) => {}
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
                let Some(slot) = self.wants.remove(&id) else {
                    return Ok(());
                };
                match errno {
                    None if self.waits_for_others(slot) => {}
                    None => self.consider(slot, false)?,
                    Some(_) => self.settle(slot, EIO)?,
                }
            }
            FromFetcher::Complete { layer } => {
                if self.layers.complete(&self.group, layer)? {
                    self.let_through(layer)?;
                    self.layers.close(&mut self.keeper, &self.group, layer)?;
                    self.ask(&ToFetcher::Drop { layer }, Vec::new());
                }
            }
            FromFetcher::Fetched(fetched) => self.counts.fetched = fetched,
        }
        Ok(())
    }

    /// An event that may be about any layer waits until all have answered.
    fn waits_for_others(&self, slot: usize) -> bool {
        let any = |entry: crate::journal::Entry| entry.layer == crate::journal::ANY;
        self.journal.entry(slot).is_some_and(any) && self.wants.values().any(|other| *other == slot)
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
        let told = self
            .runtimes
            .get_mut(&link)
            .map(|link| link.tell(message, Vec::new()));
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
                let of_it = |found: &mut crate::layers::Layer| found.digest == digest;
                if self.layers.get_mut(layer).is_some_and(of_it) {
                    self.layers.close(&mut self.keeper, &self.group, layer)?;
                    self.ask(&ToFetcher::Drop { layer }, Vec::new());
                }
                self.tell(link, &FromHolder::Closed { turn });
            }
            ToHolder::Ask { turn } => {
                let mut counts = self.counts.clone();
                counts.waiting = self.journal.open_count() as u64;
                let layers = self.layers.going();
                self.tell(
                    link,
                    &FromHolder::Going {
                        turn,
                        counts,
                        layers,
                    },
                );
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

    /// Refuses what has waited too long, also without a fetcher.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refuse_late(&mut self) -> io::Result<()> {
        let now = now_ns();
        if now < self.looked_ns + TICK_NS {
            return Ok(());
        }
        self.looked_ns = now;
        let late = |since: u64| now.saturating_sub(since) > LONGEST_NS;
        let entries = self.journal.entries();
        let late: Vec<usize> = entries
            .filter(|(_, entry)| late(entry.since_ns))
            .map(|(slot, _)| slot)
            .collect();
        for slot in late {
            self.settle(slot, EIO)?;
        }
        Ok(())
    }
}

fn make(keeper: &mut Keeper) -> io::Result<(Group, Journal)> {
    let group = Group::from(table::aside(Group::new()?.into())?);
    let journal = Journal::new()?;
    keeper.put(GROUP, Vec::new(), &[group.as_fd(), journal.file()])?;
    Ok((group, journal))
}

fn take_up(fds: Vec<OwnedFd>) -> io::Result<(Group, Journal)> {
    let fds = <[OwnedFd; 2]>::try_from(fds);
    let [group, journal] = fds.map_err(|_| io::Error::other("the keeper holds something else"))?;
    let journal = Journal::take_up(journal, now_ns())?;
    for (_, entry) in journal.entries() {
        table::reserve(entry.event.fd)?;
    }
    Ok((Group::from(group), journal))
}
