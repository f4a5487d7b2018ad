//! One slot: what a sandbox needs and what does not depend on it. Made once, and renewed after each sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::groups::SlotGroups;
use crate::kernel::mounts;
use crate::kernel::namespaces::{self, Network};

/// Descriptors of a slot.
pub const DESCRIPTORS: u64 = 5;

/// A slot that no sandbox has, or that one has and gives back.
pub struct Slot {
    /// Its number: ID range and group names follow from it.
    pub index: u32,
    /// Its groups, empty.
    pub groups: SlotGroups,
    /// A network namespace that nobody has used, or of which nothing is left.
    pub network: Network,
    /// Its ID range as an ID map.
    pub idmap: Arc<OwnedFd>,
    devices: OwnedFd,
}

impl Slot {
    /// Makes one for the range of `count` host IDs from `start`.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn make(index: u32, groups: SlotGroups, start: u32, count: u32) -> io::Result<Self> {
        groups.make()?;
        let idmap = Arc::new(namespaces::id_map(start, count)?);
        let devices = namespaces::devices(&idmap)?;
        Ok(Self {
            index,
            groups,
            network: Network::new()?,
            idmap,
            devices,
        })
    }

    /// Makes one fit for its next sandbox, after the former one's last process is gone. A network namespace in which
    /// anything is left, such as a connection in TIME_WAIT, is replaced.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn renew(mut self) -> io::Result<Self> {
        self.groups.make()?;
        if !self.network.is_unused() {
            self.network = Network::new()?;
        }
        Ok(self)
    }

    /// Detached mounts of its /dev and /sys, which are read-only and so the same for each sandbox.
    ///
    /// # Errors
    /// The errno.
    pub fn mounts(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((
            mounts::copy(&self.devices)?,
            mounts::copy(&self.network.sysfs)?,
        ))
    }
}
