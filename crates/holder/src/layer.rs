//! One layer that is filled: its files, what is there of it, how it is read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dsec_proto::filled::Bits;
use dsec_proto::loading::{chunks, LayerLoading, CHUNK, RECORD_LOST};
use rustix::fs::{fstat, openat, Mode, OFlags};

use crate::ahead::Ahead;
use crate::counts::Tally;
use crate::fan::Event;
use crate::table;

/// Longest record: of 1 TiB.
const LONGEST_RECORD: usize = 1 << 20;
/// How many files the keeper holds of one.
const KEPT: usize = 6;

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
    /// What its reads have come to.
    pub tally: Tally,
    /// What is there.
    pub bits: Bits,
    /// Device and inode of its data.
    pub identity: (u64, u64),
    /// Where `filled` is.
    pub directory: OwnedFd,
    /// Opened before the mark.
    pub data: OwnedFd,
    shared: OwnedFd,
    /// `layer.json`, `chunks`, `filled`: open, since a layer may be removed while it is read.
    told: [OwnedFd; 3],
    size: u64,
    ahead: Ahead,
}

/// A file of a layer's directory.
///
/// # Errors
/// The errno.
pub fn file_of(directory: &OwnedFd, name: &str, write: bool) -> io::Result<OwnedFd> {
    let how = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    table::aside(openat(directory, name, flags, Mode::empty())?)
}

impl Layer {
    /// One that nobody has opened yet. Its `data` and `filled` are open already.
    ///
    /// # Errors
    /// The errno.
    pub fn open(
        digest: &str,
        directory: OwnedFd,
        data: OwnedFd,
        filled: OwnedFd,
    ) -> io::Result<Self> {
        let size = size_of(&data)?;
        let record = content(&filled)?;
        if record.starts_with(&RECORD_LOST) {
            // Nothing is claimed, and so everything is fetched and brought to disk anew.
            rustix::fs::ftruncate(&filled, 0)?;
        }
        let (bits, shared) = Bits::new(size, &record)?;
        let told = [
            file_of(&directory, "layer.json", false)?,
            file_of(&directory, "chunks", false)?,
            filled,
        ];
        let shared = table::aside(shared)?;
        Self::of(digest.to_owned(), directory, data, shared, told, bits)
    }

    /// One that a dead holder had, from what the keeper holds of it.
    ///
    /// # Errors
    /// The errno; when it is something else.
    pub fn take_up(digest: String, kept: Vec<OwnedFd>) -> io::Result<Self> {
        let kept = <[OwnedFd; KEPT]>::try_from(kept);
        let [directory, data, shared, manifest, chunks, filled] =
            kept.map_err(|_| io::Error::other("the keeper holds another number of files"))?;
        let bits = Bits::map(shared.as_fd(), size_of(&data)?)?;
        let told = [manifest, chunks, filled];
        let mut layer = Self::of(digest, directory, data, shared, told, bits)?;
        layer.may_be_mounted = true;
        Ok(layer)
    }

    fn of(
        digest: String,
        directory: OwnedFd,
        data: OwnedFd,
        shared: OwnedFd,
        told: [OwnedFd; 3],
        bits: Bits,
    ) -> io::Result<Self> {
        Ok(Self {
            digest,
            took: false,
            asked: false,
            may_be_mounted: false,
            tally: Tally::default(),
            bits,
            identity: table::identity_of(&data)?,
            size: size_of(&data)?,
            directory,
            data,
            shared,
            told,
            ahead: Ahead::default(),
        })
    }

    /// What the keeper holds of it.
    #[must_use]
    pub fn kept(&self) -> Vec<BorrowedFd<'_>> {
        let own = [&self.directory, &self.data, &self.shared];
        let all = own.into_iter().chain(&self.told);
        all.map(AsFd::as_fd).collect()
    }

    /// What the fetcher needs of it: `layer.json`, `chunks`, `data`, `filled`, and the shared bits.
    ///
    /// # Errors
    /// The errno.
    pub fn parcel(&self) -> io::Result<Vec<OwnedFd>> {
        let [manifest, chunks, filled] = &self.told;
        let files = [manifest, chunks, &self.data, filled, &self.shared];
        // They may wait long for a fetcher that does not read.
        files.into_iter().map(table::copy).collect()
    }

    /// Whether all that a read wants is there.
    #[must_use]
    pub fn covers(&self, event: &Event) -> bool {
        self.bits.covers(event.offset, event.length)
    }

    /// What is worth fetching ahead of a read: offset and length, if anything is.
    pub fn ahead(&mut self, event: &Event) -> Option<(u64, u64)> {
        let more = self.ahead.read(event.offset, event.length);
        // A chunk of which a part was asked for is wanted already, or there.
        let all = chunks(more.start)..chunks(more.end).min(self.bits.chunks());
        let mut missing = all.filter(|chunk| !self.bits.has(*chunk));
        let first = missing.next()?;
        let last = missing.next_back().unwrap_or(first);
        Some((first * CHUNK, (last + 1 - first) * CHUNK))
    }

    /// How far it is.
    #[must_use]
    pub fn loading(&self, layer: u32, waiting: u64) -> LayerLoading {
        LayerLoading {
            layer,
            digest: self.digest.clone(),
            bytes: self.size,
            filled_bytes: self.size.min(self.bits.count() * CHUNK),
            counts: self.tally.counts(waiting),
        }
    }
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
    while have < LONGEST_RECORD {
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

    fn layer(chunks: u64) -> Layer {
        table::prepare().expect("descriptors");
        let data = rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC);
        let data = data.expect("made");
        rustix::fs::ftruncate(&data, chunks * CHUNK).expect("a size");
        let (bits, shared) = Bits::new(chunks * CHUNK, &[]).expect("made");
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("opened"));
        let told = [file(), file(), file()];
        Layer::of("d".into(), file(), data, shared, told, bits).expect("a layer")
    }

    fn read(layer: &mut Layer, offset: u64) -> Option<(u64, u64)> {
        layer.ahead(&Event {
            fd: 3,
            offset,
            length: CHUNK / 2,
        })
    }

    /// What waits to be sent to the fetcher occupies no number that an event could have.
    #[test]
    fn a_parcel_lies_above_events() {
        let fds = layer(1).parcel().expect("copied");
        assert_eq!(fds.len(), 5);
        for fd in fds {
            assert!(table::reserve(fd.as_raw_fd()).is_err(), "an event's number");
        }
    }

    /// Only what is missing is fetched ahead, in whole chunks, and nothing beyond the end.
    #[test]
    fn only_what_is_missing() {
        let mut layer = layer(5);
        layer.bits.set(1);
        assert_eq!(read(&mut layer, 0), None);
        assert_eq!(read(&mut layer, CHUNK / 2), None, "the second one is there");
        assert_eq!(read(&mut layer, CHUNK), Some((2 * CHUNK, 2 * CHUNK)));
        let rest = read(&mut layer, 3 * CHUNK);
        assert_eq!(rest, Some((4 * CHUNK, CHUNK)));
        assert_eq!(read(&mut layer, 4 * CHUNK), None);
    }
}
