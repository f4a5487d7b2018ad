//! The set of groups of one slot.

use std::io;
use std::path::{Path, PathBuf};

use super::layout::V1;
use super::{directory, field, has_processes, number, put, Baseline, Layout, Leaf};
use dsec_proto::runtime::Usage;

const PERIOD_US: u64 = 100_000;

/// What TCP may hold in its buffers beside the memory that is limited: such a part of that, but so much at least.
const TCP_PART: u64 = 4;
const TCP_LEAST: u64 = 16 << 20;

/// Limits what TCP holds for a v1 group. The kernel counts it only for a group whose own limit was set, and apart.
pub(super) fn limit_tcp(group: &Path, most: &str) -> io::Result<()> {
    match put(&group.join("memory.kmem.tcp.limit_in_bytes"), most) {
        // A kernel without such counts.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_milli: u64,
    /// Processes and threads, init not counted.
    pub pids: u64,
}

/// A count of processes as the sandbox's own: its limit does not count the init either.
fn but_init(count: Option<u64>) -> Option<u64> {
    count.map(|count| count.saturating_sub(1))
}

/// The groups of a slot.
#[derive(Clone, Debug)]
pub struct SlotGroups {
    /// In the v2 tree.
    pub v2: PathBuf,
    v1: Option<V1>,
}

impl SlotGroups {
    pub(super) fn new(layout: Layout, index: u32) -> Self {
        let name = format!("s{index}");
        let v1 = layout.v1.map(|v1| V1 {
            memory: v1.memory.join(&name),
            cpuacct: v1.cpuacct.join(&name),
            cpu: v1.cpu.join(&name),
            pids: v1.pids.join(&name),
        });
        Self {
            v2: layout.v2.join(&name),
            v1,
        }
    }

    /// Makes what is missing and sets the counters back, for the next user of an empty slot.
    ///
    /// # Errors
    /// The errno; EBUSY when it is not empty.
    pub fn make(&self) -> io::Result<()> {
        // In a v2 directory that was killed, the kernel kills whatever is born into it, so that none is used twice.
        for leaf in self.below(&self.v2) {
            std::fs::remove_dir(&leaf.v2)?;
        }
        let _ = std::fs::remove_dir(&self.v2);
        directory(&self.v2)?;
        if let Some(v1) = &self.v1 {
            // The peak of a pids group cannot be set back, so it is made anew.
            let _ = std::fs::remove_dir(&v1.pids);
            for path in v1.all() {
                directory(path)?;
            }
        } else {
            put(
                &self.v2.join("cgroup.subtree_control"),
                "+memory +pids +cpu",
            )?;
        }
        for leaf in [self.init(), self.leaf(0)] {
            leaf.make()?;
            leaf.reset(false)?;
        }
        Ok(())
    }

    /// The init's leaf: of its own in the v2 tree only. A v1 memory group more would cost several times what the init
    /// itself does, so that it is in the slot's.
    #[must_use]
    pub fn init(&self) -> Leaf {
        Leaf {
            v2: self.v2.join("init"),
            v1: self.v1.clone().map(|v1| (v1, String::new())),
        }
    }

    /// A numbered leaf.
    #[must_use]
    pub fn leaf(&self, index: u16) -> Leaf {
        self.named(format!("e{index}"))
    }

    fn named(&self, name: String) -> Leaf {
        Leaf {
            v2: self.v2.join(&name),
            v1: self.v1.clone().map(|v1| (v1, name)),
        }
    }

    /// All leaves that exist. Those of former sandboxes still have their memory group, whose counters go on.
    #[must_use]
    pub fn leaves(&self) -> Vec<Leaf> {
        self.below(self.v1.as_ref().map_or(&self.v2, |v1| &v1.memory))
    }

    fn below(&self, path: &Path) -> Vec<Leaf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories
            .filter_map(|entry| Some(self.named(entry.file_name().into_string().ok()?)))
            .collect()
    }

    /// Sets the limits.
    ///
    /// # Errors
    /// EINVAL for what the kernel does not take.
    pub fn limit(&self, limits: &Limits) -> io::Result<()> {
        let pids = (limits.pids + 1).to_string(); // and the init
        let quota = (limits.cpu_milli * (PERIOD_US / 1000)).max(1000);
        let memory = limits.memory_bytes.to_string();
        let Some(v1) = &self.v1 else {
            put(&self.v2.join("pids.max"), &pids)?;
            put(&self.v2.join("cpu.max"), &format!("{quota} {PERIOD_US}"))?;
            put(&self.v2.join("memory.swap.max"), "0")?;
            return put(&self.v2.join("memory.max"), &memory);
        };
        put(&v1.pids.join("pids.max"), &pids)?;
        let quota_file = v1.cpu.join("cpu.cfs_quota_us");
        // Writing takes the locks of all run queues; the slot's last user mostly had the same.
        if number(&quota_file) != Some(quota) {
            put(&quota_file, &quota.to_string())?;
        }
        let both = v1.memory.join("memory.memsw.limit_in_bytes");
        let counts_swap = both.exists();
        if counts_swap {
            // It may never be below the other limit, whichever way that moves.
            put(&both, "-1")?;
        }
        put(&v1.memory.join("memory.limit_in_bytes"), &memory)?;
        if counts_swap {
            put(&both, &memory)?;
        }
        let most = (limits.memory_bytes / TCP_PART).max(TCP_LEAST);
        limit_tcp(&v1.memory, &most.to_string())
    }

    /// Kills all that is in the slot.
    ///
    /// # Errors
    /// The errno.
    pub fn kill(&self) -> io::Result<()> {
        put(&self.v2.join("cgroup.kill"), "1")
    }

    /// Lets all that is in the slot stand still, or go on.
    ///
    /// # Errors
    /// The errno.
    pub fn freeze(&self, on: bool) -> io::Result<()> {
        put(&self.v2.join("cgroup.freeze"), if on { "1" } else { "0" })
    }

    /// Whether it is to stand still.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        number(&self.v2.join("cgroup.freeze")) == Some(1)
    }

    /// Memory charged now.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let file = match &self.v1 {
            Some(v1) => v1.memory.join("memory.usage_in_bytes"),
            None => self.v2.join("memory.current"),
        };
        number(&file).unwrap_or(0)
    }

    /// Whether no process is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !has_processes(&self.v2)
    }

    /// Forks that the limit refused, so far.
    #[must_use]
    pub fn pids_refused(&self) -> u64 {
        field(&self.pids_events(), "max")
    }

    /// Where those stand.
    #[must_use]
    pub fn pids_events(&self) -> PathBuf {
        let pids = self.v1.as_ref().map_or(&self.v2, |v1| &v1.pids);
        pids.join("pids.events")
    }

    /// OOM kills of the init and all other leaves, so far.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        if self.v1.is_none() {
            // Of all below it, also of leaves that are gone.
            return field(&self.v2.join("memory.events"), "oom_kill");
        }
        let leaves: u64 = self.leaves().iter().map(Leaf::oom_kills).sum();
        leaves + self.init().oom_kills()
    }

    /// Counters that cannot be set back, as they are now.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        Baseline {
            oom_kills: self.oom_kills(),
            pids_refused: self.pids_refused(),
        }
    }

    /// What the sandbox has used since `since`. The disk is counted elsewhere.
    #[must_use]
    pub fn usage(&self, since: &Baseline) -> Usage {
        let v2 = &self.v2;
        let (cpu_ns, memory, peak, pids) = match &self.v1 {
            Some(v1) => (
                number(&v1.cpuacct.join("cpuacct.usage")),
                number(&v1.memory.join("memory.usage_in_bytes")),
                number(&v1.memory.join("memory.max_usage_in_bytes")),
                &v1.pids,
            ),
            None => (
                Some(field(&v2.join("cpu.stat"), "usage_usec") * 1000),
                number(&v2.join("memory.current")),
                number(&v2.join("memory.peak")),
                v2,
            ),
        };
        Usage {
            cpu_ns: cpu_ns.unwrap_or(0),
            memory_bytes: memory.unwrap_or(0),
            memory_peak_bytes: peak.unwrap_or(0),
            disk_bytes: None,
            pids: but_init(number(&pids.join("pids.current"))).unwrap_or(0),
            pids_peak: but_init(number(&pids.join("pids.peak"))),
            oom_kills: self.oom_kills().saturating_sub(since.oom_kills),
            read_bytes: None,
            written_bytes: None,
            memory_byte_s: 0,
        }
    }

    /// Removes the groups, which must be empty.
    pub fn remove(&self) {
        for leaf in self.leaves().into_iter().chain(self.below(&self.v2)) {
            leaf.remove();
        }
        for path in self.v1.iter().flat_map(V1::all).chain([&self.v2]) {
            let _ = std::fs::remove_dir(path);
        }
    }
}
