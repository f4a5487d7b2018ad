//! The group of a tool: one of its own in the v2 tree, to be killed by; one for all tools in each v1 hierarchy.

use std::io;
use std::path::PathBuf;

use super::layout::Layout;
use super::{directory, put};

/// The directory of all tools, beside those of the slots.
pub(super) const TOOLS: &str = "tools";

/// Where one tool and its descendants are.
#[derive(Clone, Debug)]
pub struct ToolGroup {
    /// In the v2 tree.
    pub v2: PathBuf,
    shared: Vec<PathBuf>,
}

impl ToolGroup {
    pub(super) fn new(layout: &Layout, id: &str) -> Self {
        let shared = layout.v1.iter().flat_map(|v1| v1.all());
        Self {
            v2: layout.v2.join(TOOLS).join(id),
            shared: shared.map(|base| base.join(TOOLS)).collect(),
        }
    }

    /// Makes what is missing; returns the files to join.
    ///
    /// # Errors
    /// The errno.
    pub fn make(&self) -> io::Result<Vec<PathBuf>> {
        if let Some(above) = self.v2.parent() {
            directory(above)?;
        }
        let mut files = Vec::new();
        for group in self.shared.iter().chain([&self.v2]) {
            directory(group)?;
            files.push(group.join("cgroup.procs"));
        }
        Ok(files)
    }

    /// Kills the tool with all its descendants; harmless when there is none.
    ///
    /// # Errors
    /// The errno.
    pub fn kill(&self) -> io::Result<()> {
        match put(&self.v2.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Removes what is its own, which must be empty; harmless when there is none.
    ///
    /// # Errors
    /// The errno.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir(&self.v2) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}
