//! The layers that are filled: their files, their marks, what the keeper holds of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dsec_proto::filled::Bits;
use dsec_proto::keeper::{Object, HOLDER_OBJECTS};
use dsec_proto::loading::{Going, RECORD_LOST};
use rustix::fs::{fstat, openat, unlinkat, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::fan::Group;
use crate::journal::{Entry, ANY};
use crate::keeper::Keeper;
use crate::table;

/// What the next number is kept as, in the tag: a number is never used for two layers, or whoever lets go of the first,
/// which has become complete, would unmark the second.
const NEXT: &str = "holder/next";
/// The layer of an event of a file that is no layer's (any more).
const NONE: u32 = u32::MAX;
/// Most layers at once.
const MOST: usize = 1000;
/// Longest record: of 1 TiB.
const LONGEST_RECORD: usize = 1 << 20;

/// One that is not complete.
#[derive(Debug)]
pub struct Layer {
    /// Its digest.
    pub digest: String,
    /// Whether the fetcher has found its index right.
    pub took: bool,
    /// The fetcher has been asked and has not answered.
    pub asked: bool,
    /// A runtime was told that it may mount it, maybe by a dead holder: without its mark it would read zeros.
    pub may_be_mounted: bool,
    directory: OwnedFd,
    data: OwnedFd,
    shared: OwnedFd,
    /// `layer.json`, `chunks`, `filled`: open, since a layer may be removed while it is read.
    told: [OwnedFd; 3],
    bits: Bits,
    identity: (u64, u64),
    size: u64,
}

/// All of them, by number.
#[derive(Debug)]
pub struct Layers {
    open: BTreeMap<u32, Layer>,
    by_file: HashMap<(u64, u64), u32>,
    /// Files that became complete: an event may still be on its way when their mark goes.
    complete: HashSet<(u64, u64)>,
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

fn file_of(directory: &OwnedFd, name: &str, write: bool) -> io::Result<OwnedFd> {
    let how = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    table::aside(openat(directory, name, flags, Mode::empty())?)
}

impl Layers {
    /// Those that a dead holder had, marked as they were.
    ///
    /// # Errors
    /// The errno.
    pub fn take_up(keeper: &mut Keeper, group: &Group) -> io::Result<Self> {
        let mut layers = Self {
            open: BTreeMap::new(),
            by_file: HashMap::new(),
            complete: HashSet::new(),
            next: ANY + 1,
        };
        for object in keeper.list()? {
            if object.object_id == NEXT {
                let next = rmp_serde::from_slice(&object.tag).map_err(io::Error::other)?;
                layers.next = layers.next.max(next);
            }
            let Some((number, digest)) = read_tag(&object) else {
                continue;
            };
            let fds = <[OwnedFd; 6]>::try_from(keeper.fetch(&object.object_id)?);
            let [directory, data, shared, manifest, chunks, filled] =
                fds.map_err(|_| io::Error::other("the keeper holds another number of files"))?;
            let size = size_of(&data)?;
            let bits = Bits::map(shared.as_fd(), size)?;
            // It may have died between handing over and marking.
            group.mark(data.as_fd())?;
            layers.next = layers.next.max(number + 1);
            let identity = table::identity_of(&data)?;
            let layer = Layer {
                digest,
                took: false,
                asked: false,
                may_be_mounted: true,
                directory,
                data,
                shared,
                told: [manifest, chunks, filled],
                bits,
                identity,
                size,
            };
            layers.add(number, layer);
        }
        Ok(layers)
    }

    fn add(&mut self, number: u32, layer: Layer) {
        self.by_file.insert(layer.identity, number);
        self.complete.remove(&layer.identity);
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
            return Err(io::Error::other("too many layers are not complete"));
        }
        let filled = match file_of(&directory, "filled", true) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                return Ok(Opened::Complete)
            }
            filled => filled?,
        };
        let size = size_of(&data)?;
        let record = content(&filled)?;
        if record.starts_with(&RECORD_LOST) {
            // Nothing is claimed, and so everything is fetched and brought to disk anew.
            rustix::fs::ftruncate(&filled, 0)?;
        }
        let (bits, shared) = Bits::new(size, &record)?;
        let number = self.next;
        let next = rmp_serde::to_vec(&(number + 1)).map_err(io::Error::other)?;
        keeper.put(NEXT, next, &[])?;
        self.next = number + 1;
        let layer = Layer {
            digest: digest.to_owned(),
            took: false,
            asked: false,
            may_be_mounted: false,
            identity,
            shared: table::aside(shared)?,
            told: [
                file_of(&directory, "layer.json", false)?,
                file_of(&directory, "chunks", false)?,
                filled,
            ],
            directory,
            data,
            bits,
            size,
        };
        let tag = rmp_serde::to_vec(&(number, digest)).map_err(io::Error::other)?;
        let own = [&layer.directory, &layer.data, &layer.shared];
        let fds: Vec<_> = own
            .into_iter()
            .chain(&layer.told)
            .map(AsFd::as_fd)
            .collect();
        keeper.put(&name_of(number), tag, &fds)?;
        group.mark(layer.data.as_fd())?;
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
            keeper.forget(&name_of(number))?;
            self.by_file.remove(&layer.identity);
            self.open.remove(&number);
        }
        Ok(())
    }

    /// The fetcher says that all of one is there and on disk. Its mark goes, and its record: without one a layer is
    /// complete. Returns whether that is so; it is to be closed then.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn complete(&mut self, group: &Group, number: u32) -> io::Result<bool> {
        let Some(layer) = self.open.get(&number).filter(|layer| layer.bits.complete()) else {
            return Ok(false);
        };
        match unlinkat(&layer.directory, "filled", AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        group.unmark(layer.data.as_fd())?;
        self.complete.insert(layer.identity);
        Ok(true)
    }

    /// What the fetcher needs of one: `layer.json`, `chunks`, `data`, `filled`, and the shared bits.
    ///
    /// # Errors
    /// The errno.
    pub fn parcel(&self, number: u32) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
        let Some(layer) = self.open.get(&number) else {
            return Ok(None);
        };
        let [manifest, chunks, filled] = &layer.told;
        let files = [manifest, chunks, &layer.data, filled, &layer.shared];
        // They may wait long for a fetcher that does not read.
        let fds = files.map(table::copy);
        let fds = fds.into_iter().collect::<io::Result<_>>()?;
        Ok(Some((layer.digest.clone(), fds)))
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
        let covers = |layer: &Layer| layer.bits.covers(entry.event.offset, entry.event.length);
        match entry.layer {
            ANY => Some(self.open.values().all(covers)),
            number => match self.open.get(&number) {
                Some(layer) => Some(covers(layer)),
                None => {
                    let file = table::identity(entry.event.fd).ok()?;
                    self.complete.contains(&file).then_some(true)
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

    /// How far each is.
    #[must_use]
    pub fn going(&self) -> Vec<Going> {
        let going = |layer: &Layer| Going {
            digest: layer.digest.clone(),
            bytes: layer.size,
            filled_bytes: layer
                .size
                .min(layer.bits.count() * dsec_proto::loading::CHUNK),
        };
        self.open.values().map(going).collect()
    }
}

fn read_tag(object: &Object) -> Option<(u32, String)> {
    rmp_serde::from_slice(&object.tag).ok()
}

fn size_of(file: &OwnedFd) -> io::Result<u64> {
    let found = fstat(file)?;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(io::ErrorKind::InvalidData.into());
    }
    u64::try_from(found.st_size).map_err(io::Error::other)
}

fn content(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LONGEST_RECORD];
    let mut have = 0;
    loop {
        match rustix::io::pread(file, &mut bytes[have..], have as u64)? {
            0 => break,
            read => have += read,
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// What waits to be sent to the fetcher occupies no number that an event could have.
    #[test]
    fn a_parcel_lies_above_events() {
        table::prepare().expect("descriptors");
        let (bits, shared) = Bits::new(1, &[]).expect("made");
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("opened"));
        let layer = Layer {
            digest: "d".into(),
            took: false,
            asked: false,
            may_be_mounted: false,
            directory: file(),
            data: file(),
            shared,
            told: [file(), file(), file()],
            bits,
            identity: (1, 2),
            size: 1,
        };
        let mut layers = Layers {
            open: BTreeMap::new(),
            by_file: HashMap::new(),
            complete: HashSet::new(),
            next: 2,
        };
        layers.add(1, layer);
        let (_, fds) = layers.parcel(1).expect("copied").expect("known");
        assert_eq!(fds.len(), 5);
        for fd in fds {
            assert!(table::reserve(fd.as_raw_fd()).is_err(), "an event's number");
        }
    }
}
