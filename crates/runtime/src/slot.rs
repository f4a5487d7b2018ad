//! One slot: what a sandbox needs and what does not depend on it. Made once, and renewed after each sandbox.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::groups::SlotGroups;
use crate::kernel::mounts;
use crate::kernel::namespaces::{self, Network, Small};
use crate::seen::{Machine, Shown, Stand};

/// Descriptors of a slot.
pub const DESCRIPTORS: u64 = 6;

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
    /// /dev, and what stands for files of the kernel.
    small: Small,
    /// What these show, once they are written.
    shown: Cell<Option<Shown>>,
}

impl Slot {
    /// Makes one for the range of `count` host IDs from `start`.
    ///
    /// # Errors
    /// The errno of the step that failed.
    pub fn make(index: u32, groups: SlotGroups, start: u32, count: u32) -> io::Result<Self> {
        groups.make()?;
        let idmap = Arc::new(namespaces::id_map(start, count)?);
        let small = Small::new(&idmap)?;
        Ok(Self {
            index,
            groups,
            network: Network::new()?,
            idmap,
            small,
            shown: Cell::new(None),
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
            mounts::copy(&self.small.devices)?,
            mounts::copy(&self.network.sysfs)?,
        ))
    }

    /// Detached mounts, by path, of what stands for the kernel's own files. Limits mostly are those of the slot's former
    /// sandbox, of which nobody lives.
    ///
    /// # Errors
    /// The errno.
    pub fn stands(
        &self,
        machine: &Machine,
        shown: Shown,
    ) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        if self.shown.replace(None) != Some(shown) {
            for stand in shown.stands() {
                self.small.write(stand.name(), &machine.text(stand))?;
            }
        }
        self.shown.set(Some(shown));
        let of = |stand: Stand| stand.targets().iter().map(move |target| (*target, stand));
        let mounted = |(target, stand): (_, Stand)| Ok((target, self.small.file(stand.name())?));
        shown.stands().flat_map(of).map(mounted).collect()
    }
}
