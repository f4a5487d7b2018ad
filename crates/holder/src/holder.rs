//! What is done about each event. Nothing here waits.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dsec_fault::fault;
use dsec_proto::loading::{Going, ToFetcher, PAGE};

use crate::counts::{now_ns, Tally};
use crate::fan::Group;
use crate::journal::{Entry, Journal, ANY};
use crate::keeper::Keeper;
use crate::layers::Layers;
use crate::link::Link;
use crate::table;

/// What the group and the journal are kept as.
const GROUP: &str = "holder/group";
/// The fetcher gives up long before; this bound holds when there is none.
const LONGEST_NS: u64 = 120_000_000_000;
/// How often events are taken before a complete layer is closed: readers of others might go on asking for ever.
const ROUNDS: usize = 16;
const TICK_NS: u64 = 1_000_000_000;
pub(crate) const EIO: Option<u8> = Some(libc::EIO as u8);

/// Somebody who waits for a layer to be opened: a link's number, and the turn.
pub(crate) type Asker = (u64, u64);

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
    pub(crate) layers: Layers,
    /// Who waits for a layer's opening.
    pub(crate) opening: HashMap<u32, Vec<Asker>>,
    /// Journal slots by the number of what the fetcher was asked, and the other way round.
    wants: HashMap<u64, usize>,
    asked: HashMap<usize, Vec<u64>>,
    next: u64,
    tally: Tally,
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
            opening: HashMap::new(),
            wants: HashMap::new(),
            asked: HashMap::new(),
            next: 1,
            tally: Tally::default(),
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
            let entry = self.journal.entry(*slot);
            self.consider(*slot, true)?;
            self.read_on(entry);
        }
        Ok(added.len())
    }

    /// Has fetched ahead what a reader will want: what it finds there counts as a step too, and nobody waits for this.
    fn read_on(&mut self, entry: Option<Entry>) {
        let layer = entry.and_then(|entry| Some((entry, self.layers.get_mut(entry.layer)?)));
        let more = layer.and_then(|(entry, layer)| Some((entry, layer.ahead(&entry.event)?)));
        if let Some((Entry { layer, .. }, (offset, length))) = more {
            let ahead = ToFetcher::Ahead {
                layer,
                offset,
                length,
            };
            self.ask(&ahead, Vec::new());
        }
    }

    /// Answers all that was asked of a complete layer before its mark went, while it is known whose file that is.
    pub(crate) fn let_through(&mut self, number: u32) -> io::Result<()> {
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
            Some(true) => {
                let waited_us = now_ns().saturating_sub(entry.since_ns) / 1000;
                self.count(entry.layer, |tally| match new {
                    true => tally.hits += 1,
                    false => tally.waits.add(waited_us),
                });
                self.settle(slot, None)
            }
            None => self.settle(slot, EIO),
            Some(false) => {
                self.want(slot, &entry);
                Ok(())
            }
        }
    }

    /// All that are open, once more.
    pub(crate) fn consider_all(&mut self) {
        let slots: Vec<usize> = self.journal.entries().map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Err(error) = self.consider(slot, false) {
                tracing::error!("an event cannot be answered: {error}");
            }
        }
    }

    /// Counts something of a layer's, and of all.
    pub(crate) fn count(&mut self, layer: u32, mut what: impl FnMut(&mut Tally)) {
        what(&mut self.tally);
        if let Some(layer) = self.layers.get_mut(layer) {
            what(&mut layer.tally);
        }
    }

    fn settle(&mut self, slot: usize, errno: Option<u8>) -> io::Result<()> {
        if let Some(entry) = self.journal.entry(slot) {
            if errno.is_some() {
                self.count(entry.layer, |tally| tally.errors += 1);
            }
            fault!("holder.event.decided");
            self.group.answer(entry.event.fd, errno)?;
            fault!("holder.event.answered");
            self.journal.clear(slot);
            // What is still to come for this event is not for the next one of the slot.
            for id in self.asked.remove(&slot).unwrap_or_default() {
                self.wants.remove(&id);
            }
            table::release(entry.event.fd);
        }
        Ok(())
    }

    fn want(&mut self, slot: usize, entry: &Entry) {
        for layer in self.layers.concerned(entry) {
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
                self.asked.entry(slot).or_default().push(id);
                fault!("holder.event.wanted");
            }
        }
    }

    /// The fetcher has answered a want. An event that may be about any layer waits until all have answered.
    pub(crate) fn done(&mut self, id: u64, errno: Option<u8>) -> io::Result<()> {
        let Some(slot) = self.wants.remove(&id) else {
            return Ok(());
        };
        let left = self.asked.get_mut(&slot).map_or(0, |ids| {
            ids.retain(|other| *other != id);
            ids.len()
        });
        let any = |entry: Entry| entry.layer == ANY;
        match errno {
            None if left > 0 && self.journal.entry(slot).is_some_and(any) => Ok(()),
            None => self.consider(slot, false),
            Some(_) => self.settle(slot, EIO),
        }
    }

    /// Says something to the fetcher; one that comes later is told everything.
    pub(crate) fn ask(&mut self, message: &ToFetcher, fds: Vec<OwnedFd>) -> bool {
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

    /// The fetcher is gone; readers wait for the next one.
    pub fn lost_fetcher(&mut self, why: &io::Error) {
        tracing::warn!("the fetcher is gone: {why}");
        self.fetcher = None;
        self.wants.clear();
        self.asked.clear();
    }

    /// A page of how it goes.
    pub(crate) fn going(&self, after: u32) -> Going {
        let (mut waiting, mut all, mut oldest_ns) = (HashMap::new(), 0, 0);
        let now = now_ns();
        for (_, entry) in self.journal.entries() {
            *waiting.entry(entry.layer).or_insert(0) += 1;
            all += 1;
            oldest_ns = oldest_ns.max(now.saturating_sub(entry.since_ns));
        }
        let waiting = |number| waiting.get(&number).copied().unwrap_or_default();
        let page = self.layers.above(after).take(PAGE + 1);
        let mut layers: Vec<_> = page
            .map(|(number, layer)| layer.loading(number, waiting(number)))
            .collect();
        let more = layers.len() > PAGE;
        layers.truncate(PAGE);
        Going {
            fetcher: self.fetcher.is_some(),
            oldest_wait_ms: oldest_ns / 1_000_000,
            counts: self.tally.counts(all),
            layers,
            more,
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
