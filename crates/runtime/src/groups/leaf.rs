//! A leaf: the group of one exec, one file operation, or the init.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::layout::V1;
use super::{directory, field, has_processes, put, slot};

/// The limit is the slot's; the kernel takes the count of a leaf up to it.
const UNLIMITED: &str = "-1";

/// Counters that the kernel cannot set back, as they were when the leaf was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// OOM kills.
    pub oom_kills: u64,
    /// Refused forks of the whole sandbox.
    pub pids_refused: u64,
}

/// The directory to be born in, and the files to join after that.
pub struct Entry {
    /// v2 directory.
    pub born: OwnedFd,
    /// v1 files.
    pub joined: Vec<OwnedFd>,
}

/// One leaf below a slot.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// In the v2 tree.
    pub v2: PathBuf,
    /// (the slot's directories, the leaf's name).
    pub(super) v1: Option<(V1, String)>,
}

impl Leaf {
    /// Makes the groups that are missing.
    ///
    /// # Errors
    /// The errno.
    pub fn make(&self) -> io::Result<()> {
        directory(&self.v2)?;
        if let Some((v1, name)) = &self.v1 {
            // The init's is the slot's, which has a limit of its own.
            if !name.is_empty() {
                let memory = v1.memory.join(name);
                directory(&memory)?;
                slot::limit_tcp(&memory, UNLIMITED)?;
            }
            directory(&v1.cpuacct.join(name))?;
        }
        Ok(())
    }

    /// Makes an empty leaf fit for its next user.
    ///
    /// The v2 directory of one that was killed is made anew: the kernel kills whatever is born into it (decision 0010).
    ///
    /// # Errors
    /// The errno; EBUSY when it is not empty after all.
    pub fn reset(&self, killed: bool) -> io::Result<()> {
        if killed || self.v1.is_none() {
            std::fs::remove_dir(&self.v2)?;
            directory(&self.v2)?;
        }
        if let Some((v1, name)) = &self.v1 {
            put(&v1.memory.join(name).join("memory.max_usage_in_bytes"), "0")?;
            put(&v1.cpuacct.join(name).join("cpuacct.usage"), "0")?;
        }
        Ok(())
    }

    /// Opens the way in.
    ///
    /// # Errors
    /// The errno.
    pub fn entry(&self) -> io::Result<Entry> {
        let open = |path: PathBuf| OpenOptions::new().write(true).open(path).map(OwnedFd::from);
        let born = File::open(&self.v2)?.into();
        let mut joined = Vec::new();
        if let Some((v1, name)) = &self.v1 {
            joined.push(open(v1.memory.join(name).join("tasks"))?);
            joined.push(open(v1.cpuacct.join(name).join("tasks"))?);
            joined.push(open(v1.cpu.join("tasks"))?);
            joined.push(open(v1.pids.join("tasks"))?);
        }
        Ok(Entry { born, joined })
    }

    /// Kills all that is in it.
    ///
    /// # Errors
    /// The errno.
    pub fn kill(&self) -> io::Result<()> {
        put(&self.v2.join("cgroup.kill"), "1")
    }

    /// Whether no process is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !has_processes(&self.v2)
    }

    /// OOM kills so far.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        field(&self.counters()[0], "oom_kill")
    }

    /// Where OOM kills, CPU time and the peak of memory stand.
    pub(super) fn counters(&self) -> [PathBuf; 3] {
        match &self.v1 {
            Some((v1, name)) => [
                v1.memory.join(name).join("memory.oom_control"),
                v1.cpuacct.join(name).join("cpuacct.usage"),
                v1.memory.join(name).join("memory.max_usage_in_bytes"),
            ],
            None => ["memory.events", "cpu.stat", "memory.peak"].map(|name| self.v2.join(name)),
        }
    }

    /// Whether each user has directories of its own, because counters cannot be set back.
    pub(super) fn is_renewed(&self) -> bool {
        self.v1.is_none()
    }

    #[cfg(test)]
    pub(super) fn nowhere() -> Self {
        let v2 = PathBuf::from("/nowhere");
        Self { v2, v1: None }
    }

    pub(super) fn remove(&self) {
        if let Some((v1, name)) = &self.v1 {
            let _ = std::fs::remove_dir(v1.memory.join(name));
            let _ = std::fs::remove_dir(v1.cpuacct.join(name));
        }
        let _ = std::fs::remove_dir(&self.v2);
    }
}
