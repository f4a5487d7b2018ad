//! `MountTree` and `PivotRoot`: the root of a sandbox, built in its own mount namespace.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, CWD};
use rustix::io::Errno;
use rustix::mount::{
    self, FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::failing::{shown, Doing, Fault};
use crate::in_root::{self, Kind};
use crate::plan::{Mount, Source, Tree};
use crate::sys;

const NOTHING: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Mount the tree over "/" of this mount namespace; the process stays on the old root until [`pivot`].
pub(crate) fn build(tree: &Tree, fds: &[OwnedFd]) -> Result<(), Fault> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount::mount_change("/", private).doing(|| "make all mounts private")?;
    let root = fds[usize::from(tree.root)].as_fd();
    attach(root, CWD, "/").doing(|| "mount the root")?;
    let mut builder = Builder {
        root,
        fds,
        empty: None,
        null: None,
    };
    for entry in &tree.mounts {
        builder.mount(entry).map_err(|fault| Fault {
            message: format!("{}: {}", entry.target, fault.message),
            ..fault
        })?;
    }
    Ok(())
}

/// Make the tree the root of this process and let go of the old one.
pub(crate) fn pivot(root: BorrowedFd<'_>) -> Result<(), Fault> {
    rustix::process::fchdir(root).doing(|| "change to the new root")?;
    rustix::process::pivot_root(".", ".").doing(|| "pivot_root")?;
    mount::unmount(".", UnmountFlags::DETACH).doing(|| "let go of the old root")?;
    rustix::process::chdir("/").doing(|| "change to the root")
}

pub(crate) fn attach(
    tree: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    path: &str,
) -> Result<(), Errno> {
    let mut flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if path.is_empty() {
        flags |= MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    }
    mount::move_mount(tree, "", directory, path, flags)
}

fn cloned(tree: BorrowedFd<'_>, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    mount::open_tree(tree, "", flags)
}

fn kind_of(file: BorrowedFd<'_>) -> Result<Kind, Errno> {
    let mode = rustix::fs::fstat(file)?.st_mode;
    Ok(match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Directory,
        _ => Kind::File,
    })
}

struct Builder<'a> {
    root: BorrowedFd<'a>,
    fds: &'a [OwnedFd],
    /// The empty tmpfs of the masked directories, mounted on the first of them.
    empty: Option<OwnedFd>,
    /// The tree's own /dev/null.
    null: Option<OwnedFd>,
}

impl Builder<'_> {
    fn mount(&mut self, entry: &Mount) -> Result<(), Fault> {
        let Some(target) = self.target(entry)? else {
            return Ok(());
        };
        let target = target.as_fd();
        match &entry.source {
            Source::Detached(index) => {
                let tree = self.fds[usize::from(*index)].as_fd();
                attach(tree, target, "").doing(|| "move the mount here")
            }
            Source::New {
                kind,
                options,
                attributes,
            } => {
                let attributes = MountAttrFlags::from_bits_retain(*attributes as u32);
                let tree = new_mount(kind, options, attributes)?;
                attach(tree.as_fd(), target, "").doing(|| format!("move the new {kind} here"))
            }
            Source::ReadOnly => bind(target, true),
            Source::Pinned => bind(target, false),
            Source::Masked => self.mask(target),
        }
    }

    /// The target, open; made when it is missing, `None` when it may be missing.
    fn target(&self, entry: &Mount) -> Result<Option<OwnedFd>, Fault> {
        let path = entry.target.as_bytes();
        // A file may stand behind a link, as resolv.conf often does; a link at /proc would bring masks down elsewhere.
        let open = match self.kind(&entry.source)? {
            Some(Kind::File) => in_root::open(self.root, path, OFlags::PATH),
            _ => in_root::open_straight(self.root, path, OFlags::PATH),
        };
        match open {
            Ok(target) => return Ok(Some(target)),
            Err(Errno::NOENT | Errno::NOTDIR) if entry.optional => return Ok(None),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(Fault::with(errno, "open the target")),
        }
        let Some(kind) = self.kind(&entry.source)? else {
            return Err(Fault::with(Errno::NOENT, "the target does not exist"));
        };
        in_root::open_or_make(self.root, path, kind)
            .doing(|| "make the target")
            .map(Some)
    }

    /// What is mounted; `None`: the target itself, or something like it.
    fn kind(&self, source: &Source) -> Result<Option<Kind>, Fault> {
        Ok(match source {
            Source::Detached(index) => {
                let file = self.fds[usize::from(*index)].as_fd();
                Some(kind_of(file).doing(|| "look at the source")?)
            }
            Source::New { .. } => Some(Kind::Directory),
            Source::ReadOnly | Source::Pinned | Source::Masked => None,
        })
    }

    fn mask(&mut self, target: BorrowedFd<'_>) -> Result<(), Fault> {
        match kind_of(target).doing(|| "look at the target")? {
            Kind::Directory => self.mask_directory(target),
            Kind::File => self.mask_file(target),
        }
    }

    fn mask_directory(&mut self, target: BorrowedFd<'_>) -> Result<(), Fault> {
        if let Some(empty) = &self.empty {
            let tree = cloned(empty.as_fd(), false).doing(|| "clone the empty directory")?;
            return attach(tree.as_fd(), target, "").doing(|| "cover the directory");
        }
        let options = [
            ("size".to_owned(), "0".to_owned()),
            ("mode".to_owned(), "0755".to_owned()),
        ];
        let tree = new_mount("tmpfs", &options, NOTHING)?;
        attach(tree.as_fd(), target, "").doing(|| "cover the directory")?;
        self.empty = Some(tree);
        Ok(())
    }

    fn mask_file(&mut self, target: BorrowedFd<'_>) -> Result<(), Fault> {
        let null = match &self.null {
            Some(null) => null,
            None => {
                let opened = in_root::open(self.root, b"/dev/null", OFlags::PATH)
                    .doing(|| "open the tree's /dev/null")?;
                self.null.insert(opened)
            }
        };
        let tree = cloned(null.as_fd(), false).doing(|| "clone /dev/null")?;
        attach(tree.as_fd(), target, "").doing(|| "cover the file")
    }
}

fn bind(target: BorrowedFd<'_>, read_only: bool) -> Result<(), Fault> {
    let tree = cloned(target, true).doing(|| "clone the tree")?;
    if read_only {
        let flag = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
        sys::mount_setattr(tree.as_fd(), flag, true).doing(|| "make the tree read-only")?;
    }
    attach(tree.as_fd(), target, "").doing(|| "cover the tree")
}

pub(crate) fn new_mount(
    kind: &str,
    options: &[(String, String)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Fault> {
    let context = mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
        .doing(|| format!("open the filesystem {kind}"))?;
    for (key, value) in options {
        let set = if value.is_empty() {
            mount::fsconfig_set_flag(&context, key.as_str())
        } else {
            mount::fsconfig_set_string(&context, key.as_str(), value.as_str())
        };
        set.doing(|| format!("set {kind} option {key}={value}{}", complaints(&context)))?;
    }
    mount::fsconfig_create(&context)
        .doing(|| format!("create the {kind}{}", complaints(&context)))?;
    mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .doing(|| format!("mount the {kind}{}", complaints(&context)))
}

/// What the kernel logged in the filesystem context.
fn complaints(context: &OwnedFd) -> String {
    let mut line = [0_u8; 512];
    let mut text = String::new();
    while let Ok(length @ 1..) = rustix::io::read(context, &mut line) {
        text.push_str("; ");
        text.push_str(shown(&line[..length]).trim_end());
        if text.len() > 2048 {
            break;
        }
    }
    text
}
