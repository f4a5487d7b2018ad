//! Where the parent belongs, and the nursery where children with mounts of their own are born.
//!
//! A clone with a new mount namespace copies the parent's mount table, the host's, however long that is. So
//! the parent steps into the *nursery* around such a clone: a mount namespace with an empty root and /proc.
//! Everything else that the parent does and starts sees the host's own mounts, later ones included.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, CWD};
use rustix::io::Errno;
use rustix::mount::{self, MountAttrFlags, MountPropagationFlags};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

use crate::failing::{Doing, Fault};
use crate::plan::Failure;
use crate::{mounts, sys};

const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The parent's own namespaces and directories, to come back to after a clone; and the nursery.
#[derive(Debug)]
pub struct Home {
    pid: OwnedFd,
    net: OwnedFd,
    outside: Outside,
    nursery: OwnedFd,
}

/// The host's mounts, and where in them this process stands.
#[derive(Debug)]
struct Outside {
    mounts: OwnedFd,
    root: OwnedFd,
    cwd: OwnedFd,
}

impl Home {
    /// Open the namespaces of this process, which is single-threaded, and make the nursery.
    ///
    /// # Errors
    /// The failure of step `home`: /proc is not there or masked, or this process may not mount.
    ///
    /// # Panics
    /// When the process cannot go back to its own mounts.
    pub fn open() -> Result<Self, Failure> {
        Self::try_open(None).map_err(|fault| fault.at("home"))
    }

    /// The same with the [`Home::nursery`] that this process made before it executed itself anew.
    ///
    /// # Errors
    /// The failure of step `home`: /proc is not there.
    pub fn resume(nursery: OwnedFd) -> Result<Self, Failure> {
        Self::try_open(Some(nursery)).map_err(|fault| fault.at("home"))
    }

    /// The nursery's descriptor.
    #[must_use]
    pub fn nursery(&self) -> BorrowedFd<'_> {
        self.nursery.as_fd()
    }

    fn try_open(nursery: Option<OwnedFd>) -> Result<Self, Fault> {
        let outside = Outside {
            mounts: open("/proc/self/ns/mnt", OFlags::RDONLY)?,
            root: open("/", OFlags::PATH | OFlags::DIRECTORY)?,
            cwd: open(".", OFlags::PATH | OFlags::DIRECTORY)?,
        };
        Ok(Self {
            pid: open("/proc/self/ns/pid", OFlags::RDONLY)?,
            net: open("/proc/self/ns/net", OFlags::RDONLY)?,
            nursery: match nursery {
                Some(nursery) => nursery,
                None => make_nursery(&outside)?,
            },
            outside,
        })
    }

    /// Step into the nursery.
    pub(crate) fn enter_nursery(&self) -> Result<(), Errno> {
        go_to(self.nursery.as_fd(), ThreadNameSpaceType::MOUNT)
    }

    /// Back to the host's mounts.
    pub(crate) fn leave_nursery(&self) -> Result<(), Errno> {
        self.outside.come_back()
    }

    /// Back to the own network namespace.
    pub(crate) fn back_to_net(&self) -> Result<(), Errno> {
        go_to(self.net.as_fd(), ThreadNameSpaceType::NETWORK)
    }

    /// Have children in the own PID namespace again.
    pub(crate) fn back_to_pid(&self) -> Result<(), Errno> {
        go_to(self.pid.as_fd(), ThreadNameSpaceType::PROCESS_ID)
    }
}

impl Outside {
    fn come_back(&self) -> Result<(), Errno> {
        go_to(self.mounts.as_fd(), ThreadNameSpaceType::MOUNT)?;
        // Entering led to the topmost mount of "/", which need not be where this process was.
        rustix::process::fchdir(&self.root)?;
        rustix::process::chroot(".")?;
        rustix::process::fchdir(&self.cwd)
    }
}

pub(crate) fn go_to(target: BorrowedFd<'_>, kind: ThreadNameSpaceType) -> Result<(), Errno> {
    rustix::thread::move_into_thread_name_spaces(target, kind)
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).doing(|| format!("open {path}"))
}

fn make_nursery(outside: &Outside) -> Result<OwnedFd, Fault> {
    // SAFETY: this process is single-threaded and shares no descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .doing(|| "make a mount namespace")?;
    let made = empty_out().and_then(|()| open("/proc/self/ns/mnt", OFlags::RDONLY));
    outside
        .come_back()
        .expect("the parent has its own mounts back");
    made
}

/// Leave of this mount namespace an empty, read-only root and /proc. A child can only mount a /proc of its
/// own where it already sees a whole one.
fn empty_out() -> Result<(), Fault> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount::mount_change("/", private).doing(|| "make all mounts private")?;
    let options = [("mode".to_owned(), "0755".to_owned())];
    let root = mounts::new_mount("tmpfs", &options, HARMLESS)?;
    rustix::fs::mkdirat(&root, "proc", Mode::from_raw_mode(0o555)).doing(|| "make /proc")?;
    mounts::attach(root.as_fd(), CWD, "/").doing(|| "mount the empty root")?;
    let proc = mounts::new_mount("proc", &[], HARMLESS)?;
    mounts::attach(proc.as_fd(), root.as_fd(), "proc").doing(|| "mount /proc")?;
    mounts::pivot(root.as_fd())?;
    let read_only = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
    sys::mount_setattr(root.as_fd(), read_only, false).doing(|| "make the empty root read-only")
}
