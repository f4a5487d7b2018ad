//! The layers that are filled: their files, their marks, what the keeper holds of them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dsec_fault::fault;
use dsec_proto::keeper::{Object, HOLDER_OBJECTS};
use dsec_proto::loading::FULL;
use rustix::fs::{unlinkat, AtFlags};
use rustix::io::Errno;

use crate::complete::Complete;
use crate::fan::Group;
use crate::journal::{Entry, ANY};
use crate::keeper::Keeper;
use crate::layer::{file_of, Layer};
use crate::table;

/// What the next number is kept as, in the tag: a number is never used for two layers, or whoever lets go of the first,
/// which has become complete, would unmark the second.
const NEXT: &str = "holder/next";
/// The layer of an event of a file that is no layer's (any more).
const NONE: u32 = u32::MAX;
/// Most layers at once.
const MOST: usize = 1000;

/// All of them, by number.
#[derive(Debug)]
pub struct Layers {
    open: BTreeMap<u32, Layer>,
    by_file: HashMap<(u64, u64), u32>,
    complete: Complete,
    next: u32,
}

/// What came of opening one.
#[derive(Debug)]
pub enum Opened {
    /// All of it is there.
    Complete,
    /// It was open before.
    Known(u32),
    /// It is new.
    New(u32),
}

fn name_of(number: u32) -> String {
    format!("{HOLDER_OBJECTS}layer/{number}")
}

impl Layers {
    /// Those that a dead holder had, marked as they were.
    ///
    /// # Errors
    /// The errno.
    pub fn take_up(keeper: &mut Keeper, group: &Group) -> io::Result<Self> {
        let objects = keeper.list()?;
        let mut layers = Self {
            open: BTreeMap::new(),
            by_file: HashMap::new(),
            complete: Complete::take_up(&objects)?,
            next: ANY + 1,
        };
        for object in objects {
            if object.object_id == NEXT {
                let next = rmp_serde::from_slice(&object.tag).map_err(io::Error::other)?;
                layers.next = layers.next.max(next);
            }
            let Some((number, digest)) = read_tag(&object) else {
                continue;
            };
            let kept = keeper.fetch(&object.object_id)?;
            let layer = Layer::take_up(digest, kept)?;
            // It may have died between handing over and marking.
            group.mark(layer.data.as_fd())?;
            layers.next = layers.next.max(number + 1);
            layers.add(number, layer);
        }
        Ok(layers)
    }

    fn add(&mut self, number: u32, layer: Layer) {
        self.by_file.insert(layer.identity, number);
        self.open.insert(number, layer);
    }

    /// Opens the files of a layer, hands them to the keeper, and then marks: a reader never waits for a file that a
    /// successor could not fill.
    ///
    /// # Errors
    /// Why it cannot be filled.
    pub fn open(
        &mut self,
        keeper: &mut Keeper,
        group: &Group,
        digest: &str,
        directory: OwnedFd,
    ) -> io::Result<Opened> {
        let data = file_of(&directory, "data", true)?;
        let identity = table::identity_of(&data)?;
        // A layer that was removed and fetched again has other files, while the former ones may still be in use.
        if let Some(number) = self.by_file.get(&identity) {
            return Ok(Opened::Known(*number));
        }
        if self.open.len() >= MOST {
            return Err(io::Error::other(FULL));
        }
        let filled = match file_of(&directory, "filled", true) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                return Ok(Opened::Complete)
            }
            filled => filled?,
        };
        let layer = Layer::open(digest, directory, data, filled)?;
        self.complete.remove(keeper, identity)?;
        let number = self.next;
        let next = rmp_serde::to_vec(&(number + 1)).map_err(io::Error::other)?;
        keeper.put(NEXT, next, &[])?;
        self.next = number + 1;
        let tag = rmp_serde::to_vec(&(number, digest)).map_err(io::Error::other)?;
        keeper.put(&name_of(number), tag, &layer.kept())?;
        fault!("holder.layer.kept");
        group.mark(layer.data.as_fd())?;
        fault!("holder.layer.marked");
        self.add(number, layer);
        Ok(Opened::New(number))
    }

    /// Unmarks and forgets one.
    ///
    /// # Errors
    /// What the kernel or the keeper says.
    pub fn close(&mut self, keeper: &mut Keeper, group: &Group, number: u32) -> io::Result<()> {
        if let Some(layer) = self.open.get(&number) {
            group.unmark(layer.data.as_fd())?;
            fault!("holder.close.unmarked");
            keeper.forget(&name_of(number))?;
            fault!("holder.close.forgotten");
            self.by_file.remove(&layer.identity);
            self.open.remove(&number);
        }
        Ok(())
    }

    /// The fetcher says that all of one is there and on disk. Its mark goes, and its record: without one a layer is
    /// complete. Returns whether that is so; it is to be closed then.
    ///
    /// # Errors
    /// What the kernel or the keeper says.
    pub fn complete(
        &mut self,
        keeper: &mut Keeper,
        group: &Group,
        number: u32,
    ) -> io::Result<bool> {
        let Some(layer) = self.open.get(&number).filter(|layer| layer.bits.complete()) else {
            return Ok(false);
        };
        // Before the mark goes: whoever met it is let through by any holder.
        self.complete.add(keeper, number, layer.identity)?;
        fault!("holder.complete.kept");
        match unlinkat(&layer.directory, "filled", AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        fault!("holder.complete.unlinked");
        group.unmark(layer.data.as_fd())?;
        fault!("holder.complete.unmarked");
        Ok(true)
    }

    /// Whose file an event is about.
    #[must_use]
    pub fn of_event(&self, number: i32) -> u32 {
        let layer = table::identity(number).ok();
        let layer = layer.and_then(|file| self.by_file.get(&file).copied());
        layer.unwrap_or(NONE)
    }

    /// Whether a reader may go on: all that it wants is there. `None`: nobody can fill it any more.
    #[must_use]
    pub fn is_there(&self, entry: &Entry) -> Option<bool> {
        let covers = |layer: &Layer| layer.covers(&entry.event);
        match entry.layer {
            ANY => Some(self.open.values().all(covers)),
            number => match self.open.get(&number) {
                Some(layer) => Some(covers(layer)),
                None if self.complete.has(number) => Some(true),
                None => {
                    let file = table::identity(entry.event.fd).ok()?;
                    self.complete.has_file(file).then_some(true)
                }
            },
        }
    }

    /// Numbers of the layers that may be what an entry is about.
    #[must_use]
    pub fn concerned(&self, entry: &Entry) -> Vec<u32> {
        let open = self.open.keys().copied();
        open.filter(|number| entry.layer == ANY || entry.layer == *number)
            .collect()
    }

    /// A layer by its number.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Layer> {
        self.open.get_mut(&number)
    }

    /// All numbers.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }

    /// Those whose numbers are larger than `after`.
    pub fn above(&self, after: u32) -> impl Iterator<Item = (u32, &Layer)> {
        let above = self.open.range(after.saturating_add(1)..);
        above.map(|(number, layer)| (*number, layer))
    }
}

fn read_tag(object: &Object) -> Option<(u32, String)> {
    rmp_serde::from_slice(&object.tag).ok()
}
