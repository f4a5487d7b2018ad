//! Leaves whose files stay open from one exec to the next: opening and closing them was a third of an exec's system calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use super::{field_of, populated, Entry, Leaf};

/// Most leaves that are warm.
const MOST: u64 = 256;
/// Descriptors of one.
const FILES: u64 = 12;

/// A control file that is read over and over.
struct Gauge(File);

impl Gauge {
    fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writable).open(path)?;
        Ok(Self(file))
    }

    fn text<T>(&self, with: impl Fn(&str) -> T) -> io::Result<T> {
        let mut buffer = [0; 1024];
        let length = self.0.read_at(&mut buffer, 0)?;
        Ok(with(&String::from_utf8_lossy(&buffer[..length])))
    }

    fn field(&self, key: &str) -> u64 {
        self.text(|text| field_of(text, key)).unwrap_or(0)
    }

    fn number(&self) -> Option<u64> {
        self.text(|text| text.trim().parse().ok()).ok()?
    }
}

/// What is read of a leaf for every exec, as far as this kernel has it.
struct Gauges {
    events: Option<Gauge>,
    oom: Option<Gauge>,
    cpu: Option<Gauge>,
    peak: Option<Gauge>,
    pids: Option<Gauge>,
    /// The disk's, in qgroups: what is written, and what is about to be.
    disk: [Option<Gauge>; 2],
}

/// A leaf with its files, as far as they are open.
pub struct WarmLeaf {
    leaf: Leaf,
    pids_events: PathBuf,
    disk: PathBuf,
    entry: RefCell<Option<Rc<Entry>>>,
    gauges: RefCell<Option<Rc<Gauges>>>,
    queued: Cell<bool>,
    used: Cell<bool>,
}

impl Deref for WarmLeaf {
    type Target = Leaf;

    fn deref(&self) -> &Leaf {
        &self.leaf
    }
}

impl WarmLeaf {
    /// A leaf with nothing open. `pids_events`: of its slot; `disk`: the directory of its sandbox's disk counter.
    #[must_use]
    pub fn new(leaf: Leaf, pids_events: PathBuf, disk: PathBuf) -> Rc<Self> {
        Rc::new(Self {
            leaf,
            pids_events,
            disk,
            entry: RefCell::default(),
            gauges: RefCell::default(),
            queued: Cell::new(false),
            used: Cell::new(false),
        })
    }

    /// Where processes enter.
    ///
    /// # Errors
    /// The errno.
    pub fn entry(&self) -> io::Result<Rc<Entry>> {
        if let Some(entry) = self.entry.borrow().as_ref() {
            return Ok(Rc::clone(entry));
        }
        let entry = Rc::new(self.leaf.entry()?);
        self.entry.replace(Some(Rc::clone(&entry)));
        Ok(entry)
    }

    fn gauges(&self) -> Rc<Gauges> {
        if let Some(gauges) = self.gauges.borrow().as_ref() {
            return Rc::clone(gauges);
        }
        let (gauges, whole) = self.open_gauges();
        let gauges = Rc::new(gauges);
        if whole {
            self.gauges.replace(Some(Rc::clone(&gauges)));
        }
        gauges
    }

    /// And whether they are what there will be: a node without descriptors left tries again.
    fn open_gauges(&self) -> (Gauges, bool) {
        let mut whole = true;
        let mut open = |path: &Path, writable| match Gauge::open(path, writable) {
            Ok(gauge) => Some(gauge),
            Err(error) => {
                whole &= error.kind() == io::ErrorKind::NotFound;
                None
            }
        };
        let ([oom, cpu, peak], set_back) = (self.leaf.counters(), !self.leaf.is_renewed());
        let disk = ["referenced", "rsv_data"].map(|name| open(&self.disk.join(name), false));
        let gauges = Gauges {
            events: open(&self.leaf.v2.join("cgroup.events"), false),
            oom: open(&oom, false),
            cpu: open(&cpu, set_back),
            peak: open(&peak, set_back),
            pids: open(&self.pids_events, false),
            disk,
        };
        (gauges, whole)
    }

    /// Whether no process is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.gauges().events {
            Some(events) => !populated(events.text(|text| field_of(text, "populated"))),
            None => self.leaf.is_empty(),
        }
    }

    /// OOM kills so far.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let files = self.gauges();
        files.oom.as_ref().map_or(0, |oom| oom.field("oom_kill"))
    }

    /// Refused forks of the whole sandbox, so far.
    #[must_use]
    pub fn pids_refused(&self) -> u64 {
        let files = self.gauges();
        files.pids.as_ref().map_or(0, |pids| pids.field("max"))
    }

    /// Bytes on the sandbox's disk, with those that are about to be; `None` when they are not counted.
    #[must_use]
    pub fn disk_used(&self) -> Option<u64> {
        let files = self.gauges();
        let [referenced, reserved] = &files.disk;
        let reserved = reserved.as_ref().and_then(Gauge::number).unwrap_or(0);
        Some(referenced.as_ref()?.number()? + reserved)
    }

    /// CPU nanoseconds, and the most memory that was charged.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        let files = self.gauges();
        let cpu = files.cpu.as_ref().and_then(|cpu| {
            if self.leaf.is_renewed() {
                Some(cpu.field("usage_usec") * 1000)
            } else {
                cpu.number()
            }
        });
        let peak = files.peak.as_ref().and_then(Gauge::number);
        (cpu.unwrap_or(0), peak.unwrap_or(0))
    }

    /// Makes an empty leaf fit for its next user.
    ///
    /// # Errors
    /// As [`Leaf::reset`].
    pub fn reset(&self, killed: bool) -> io::Result<()> {
        if killed || self.leaf.is_renewed() {
            self.close();
            return self.leaf.reset(killed);
        }
        let files = self.gauges();
        for counter in [&files.peak, &files.cpu] {
            let counter = counter.as_ref().ok_or(io::ErrorKind::NotFound)?;
            counter.0.write_all_at(b"0", 0)?;
        }
        Ok(())
    }

    /// Closes what is open and not in use right now.
    pub fn close(&self) {
        self.entry.replace(None);
        self.gauges.replace(None);
    }
}

/// Which leaves are warm: when there are too many, one that was not used for a round of the others is closed.
#[derive(Default)]
pub struct Warm(RefCell<VecDeque<Weak<WarmLeaf>>>);

impl Warm {
    /// A leaf was used.
    pub fn used(&self, leaf: &Rc<WarmLeaf>, descriptor_limit: u64) {
        leaf.used.set(true);
        let mut queue = self.0.borrow_mut();
        if !leaf.queued.replace(true) {
            queue.push_back(Rc::downgrade(leaf));
        }
        while queue.len() as u64 > most(descriptor_limit) {
            let Some(oldest) = queue.pop_front().and_then(|oldest| oldest.upgrade()) else {
                continue;
            };
            if oldest.used.replace(false) {
                queue.push_back(Rc::downgrade(&oldest));
            } else {
                oldest.queued.set(false);
                oldest.close();
            }
        }
    }
}

fn most(descriptor_limit: u64) -> u64 {
    (descriptor_limit / (16 * FILES)).clamp(1, MOST)
}

/// Descriptors that warm leaves may take.
#[must_use]
pub fn reserved(descriptor_limit: u64) -> u64 {
    most(descriptor_limit) * FILES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// However many are used, few are open; one that is used again and again stays so.
    #[test]
    fn the_least_used_are_closed() {
        let make = || WarmLeaf::new(Leaf::nowhere(), PathBuf::new(), PathBuf::new());
        let open = |leaf: &Rc<WarmLeaf>| {
            let born = OwnedFd::from(File::open("/dev/null").expect("opens"));
            let joined = Vec::new();
            leaf.entry.replace(Some(Rc::new(Entry { born, joined })));
        };
        let (warm, limit) = (Warm::default(), 4 * 16 * FILES);
        let often = make();
        let others: Vec<_> = (0..32).map(|_| make()).collect();
        open(&often);
        for other in &others {
            open(other);
            warm.used(other, limit);
            warm.used(&often, limit);
        }
        let kept = |leaf: &&Rc<WarmLeaf>| leaf.entry.borrow().is_some();
        assert!(kept(&&often));
        assert!(others.iter().filter(kept).count() <= 4);
    }

    /// A limit that is low leaves little to warm leaves.
    #[test]
    fn the_limit_is_shared() {
        assert_eq!(reserved(1 << 20), MOST * FILES);
        assert!(reserved(4096) <= 4096 / 16);
        assert!(reserved(0) > 0);
    }
}
