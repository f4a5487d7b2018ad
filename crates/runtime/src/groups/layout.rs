//! Where the controllers are.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tool::{ToolGroup, TOOLS};
use super::{directory, put, SlotGroups};
use crate::kernel::mounts::{self, attr};

/// Which hierarchies a node works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All controllers in the v2 tree.
    V2,
    /// Controllers in v1 hierarchies, kill and freeze in a mounted v2 tree.
    Hybrid,
    /// As hybrid, with a v2 tree that the runtime mounts for itself.
    V1,
}

/// The node's directory in each hierarchy.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What was found.
    pub mode: Mode,
    /// In the v2 tree.
    pub v2: PathBuf,
    /// In the v1 hierarchies memory, cpuacct, cpu, pids; absent in [`Mode::V2`].
    pub v1: Option<V1>,
    /// Keeps a v2 tree of our own mounted.
    _own: Option<Arc<OwnedFd>>,
}

/// The node's directories in the v1 hierarchies.
#[derive(Clone, Debug)]
pub struct V1 {
    /// Memory and OOM.
    pub memory: PathBuf,
    /// CPU time used.
    pub cpuacct: PathBuf,
    /// CPU quota.
    pub cpu: PathBuf,
    /// Number of processes.
    pub pids: PathBuf,
}

impl V1 {
    pub(super) fn all(&self) -> [&PathBuf; 4] {
        [&self.memory, &self.cpuacct, &self.cpu, &self.pids]
    }
}

/// Mount points by controller, from `/proc/self/mounts`; key `` is the v2 tree.
fn hierarchies(mounts: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        match parts.as_slice() {
            [_, path, "cgroup2", ..] => found.push((String::new(), PathBuf::from(path))),
            [_, path, "cgroup", options, ..] => {
                found.extend(
                    options
                        .split(',')
                        .map(|option| (option.to_owned(), PathBuf::from(path))),
                );
            }
            _ => {}
        }
    }
    found
}

impl Layout {
    /// Finds the hierarchies and makes the node's directory, `root`, in each.
    ///
    /// # Errors
    /// When a controller is nowhere, or a directory cannot be made.
    pub fn probe(root: &str) -> io::Result<Self> {
        let layout = Self::find(root)?;
        layout.prepare(root)?;
        Ok(layout)
    }

    /// Finds the hierarchies and changes nothing.
    ///
    /// # Errors
    /// When a controller is nowhere.
    pub fn find(root: &str) -> io::Result<Self> {
        let found = hierarchies(&std::fs::read_to_string("/proc/self/mounts")?);
        let at = |name: &str| {
            found
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, path)| path.join(root))
        };
        let v1 = match (at("memory"), at("cpuacct"), at("cpu"), at("pids")) {
            (Some(memory), Some(cpuacct), Some(cpu), Some(pids)) => Some(V1 {
                memory,
                cpuacct,
                cpu,
                pids,
            }),
            _ => None,
        };
        Ok(match (at(""), v1) {
            (Some(v2), None) => Self {
                mode: Mode::V2,
                v2,
                v1: None,
                _own: None,
            },
            (Some(v2), v1) => Self {
                mode: Mode::Hybrid,
                v2,
                v1,
                _own: None,
            },
            (None, None) => {
                return Err(io::Error::other(
                    "neither a cgroup v2 tree nor all v1 controllers are mounted",
                ))
            }
            (None, v1) => {
                let own = mounts::Configuring::new("cgroup2")?
                    .mount(attr::NOSUID | attr::NODEV | attr::NOEXEC)?;
                let v2 = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd())).join(root);
                Self {
                    mode: Mode::V1,
                    v2,
                    v1,
                    _own: Some(Arc::new(own)),
                }
            }
        })
    }

    fn prepare(&self, root: &str) -> io::Result<()> {
        let depth = Path::new(root).components().count();
        for base in self.bases() {
            let mut above: Vec<&Path> = base.ancestors().take(depth).collect();
            above.reverse();
            for path in above {
                directory(path)?;
            }
        }
        if self.mode == Mode::V2 {
            let mut above: Vec<&Path> = self.v2.ancestors().take(depth + 1).collect();
            above.reverse();
            for path in above {
                put(&path.join("cgroup.subtree_control"), "+memory +pids +cpu")?;
            }
        }
        Ok(())
    }

    /// The node's directory in each hierarchy.
    #[must_use]
    pub fn bases(&self) -> Vec<PathBuf> {
        let v1 = self.v1.iter().flat_map(|v1| v1.all().map(Clone::clone));
        v1.chain([self.v2.clone()]).collect()
    }

    /// The groups of a slot.
    #[must_use]
    pub fn slot(&self, index: u32) -> SlotGroups {
        SlotGroups::new(self.clone(), index)
    }

    /// Numbers of the slots that have groups.
    ///
    /// # Errors
    /// The errno.
    pub fn slots(&self) -> io::Result<Vec<u32>> {
        let names = std::fs::read_dir(&self.v2)?.flatten();
        Ok(names
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix('s')?.parse().ok())
            .collect())
    }

    /// The group of one tool, which belongs to no sandbox.
    #[must_use]
    pub fn tool(&self, id: &str) -> ToolGroup {
        ToolGroup::new(self, id)
    }

    /// The groups of all tools that have one.
    #[must_use]
    pub fn tools(&self) -> Vec<ToolGroup> {
        let names = std::fs::read_dir(self.v2.join(TOOLS)).into_iter().flatten();
        names
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| Some(self.tool(entry.file_name().to_str()?)))
            .collect()
    }

    /// Removes the groups of all slots and the node's own directories, which must be empty of processes.
    pub fn remove(&self) {
        for index in self.slots().unwrap_or_default() {
            self.slot(index).remove();
        }
        for tool in self.tools() {
            let _ = tool.remove();
        }
        for base in self.bases() {
            let _ = std::fs::remove_dir(base.join(TOOLS));
            // Stays while services of the node are in it.
            let _ = std::fs::remove_dir(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each controller of a shared mount is found, and the v2 tree by its type.
    #[test]
    fn hierarchies_are_found_by_controller() {
        let mounts =
            "cgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let found = hierarchies(mounts);
        let at = |name: &str| {
            found
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, path)| path.clone())
        };
        assert_eq!(at("cpuacct"), Some("/c/cpu,cpuacct".into()));
        assert_eq!(at(""), Some("/c/unified".into()));
        assert_eq!(at("memory"), None);
    }
}
