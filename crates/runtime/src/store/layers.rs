//! Layers: EROFS file systems, each mounted once, on first use.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::gone::Gone;
use super::read_ahead;
use crate::kernel::mounts::{self, attr, Configuring};
use crate::kernel::sys::check;

const SUPERBLOCK: u64 = 1024;
const MAGIC: u32 = 0xE0F5_E1E2;
const EXTRA_DEVICES: usize = 86;
/// What is not all here has this beside its data.
const FILLED: &str = "filled";

/// The layers of a node. Who mounts which when is decided by `crate::layers`.
pub struct Layers {
    stores: Vec<PathBuf>,
    mounts: PathBuf,
    found: Vec<String>,
}

impl Layers {
    /// Layers of these stores, mounted below `mounts`.
    ///
    /// # Errors
    /// The errno.
    pub fn open(stores: Vec<PathBuf>, mounts: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&mounts)?;
        let known = mounts::mounted()?
            .into_iter()
            .filter(|(_, kind, _)| kind == "erofs");
        let names = known.filter_map(|(path, _, _)| {
            let name = Path::new(&path).strip_prefix(&mounts).ok()?;
            Some(name.to_str()?.to_owned())
        });
        Ok(Self {
            found: names.collect(),
            stores,
            mounts,
        })
    }

    /// Those that were mounted when this process began.
    #[must_use]
    pub fn found(&self) -> &[String] {
        &self.found
    }

    /// A detached copy of the mount of a layer, seen through an ID map.
    ///
    /// # Errors
    /// `NotFound` when it is not mounted, else what the kernel says.
    pub fn copy(&self, digest: &str, idmap: &OwnedFd) -> io::Result<OwnedFd> {
        let copy = mounts::clone(&self.mounts.join(digest))?;
        if !is_erofs(&copy)? {
            let what = format!("layer {digest} is not mounted");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        mounts::set_attributes(&copy, 0, Some(idmap))?;
        Ok(copy)
    }

    fn find(&self, digest: &str) -> io::Result<PathBuf> {
        let mut stores = self.stores.iter().map(|store| store.join(digest));
        let found = stores.find(|path| path.join("metadata").is_file());
        found.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no store has layer {digest}"),
            )
        })
    }

    /// None for a layer that is all here; else its directory, if it is where the node's holder may fill it.
    ///
    /// # Errors
    /// `NotFound` when no store has it.
    pub fn partial(&self, digest: &str) -> io::Result<Option<Option<File>>> {
        let found = self.find(digest)?;
        if !found.join(FILLED).exists() {
            return Ok(None);
        }
        let own = self.stores.first().map(PathBuf::as_path);
        match found.parent() == own {
            true => Ok(Some(Some(File::open(found)?))),
            false => Ok(Some(None)),
        }
    }

    /// Mounts one.
    ///
    /// # Errors
    /// `NotFound` when no store has it, else what the kernel says.
    pub fn mount(&self, digest: &str) -> io::Result<()> {
        let found = self.find(digest)?;
        let target = self.mounts.join(digest);
        std::fs::create_dir_all(&target)?;
        let mount = || mount_erofs(&found, true).or_else(|_| mount_erofs(&found, false));
        let mount = read_ahead::mounted_with(mount)?;
        mounts::attach(&mount, &target)
    }

    /// Unmounts one. What comes with it tells when its file system is gone: overlays may have copies of the mount.
    ///
    /// # Errors
    /// When it is still mounted.
    pub fn unmount(&self, digest: &str) -> io::Result<io::Result<Gone>> {
        let target = self.mounts.join(digest);
        let system = Gone::watch(&target);
        mounts::unmount(&target, false)?;
        let _ = std::fs::remove_dir(target);
        Ok(system)
    }

    /// Nothing is mounted any more.
    pub fn close(&self) {
        let _ = std::fs::remove_dir(&self.mounts);
    }
}

fn is_erofs(mount: &OwnedFd) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open descriptor, and room for the answer.
    let done = unsafe { libc::fstatfs(mount.as_raw_fd(), found.as_mut_ptr()) };
    check(libc::c_long::from(done))?;
    // SAFETY: the kernel has filled it.
    Ok(unsafe { found.assume_init() }.f_type == i64::from(MAGIC))
}

/// `direct`: the page cache holds the file system's pages only, not those of the files behind it as well; not all file
/// systems below take part.
fn mount_erofs(layer: &Path, direct: bool) -> io::Result<OwnedFd> {
    let text = |path: PathBuf| {
        path.into_os_string()
            .into_string()
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    };
    let metadata = layer.join("metadata");
    let devices = extra_devices(&metadata)?;
    let mut erofs = Configuring::new("erofs")?.set("source", &text(metadata)?)?;
    if devices > 0 {
        erofs = erofs.set("device", &text(layer.join("data"))?)?;
    }
    if direct {
        erofs = erofs.flag("directio")?;
    }
    erofs.mount(attr::RDONLY | attr::NODEV)
}

/// How many data blobs the metadata refers to: none when no file of the layer has content of its own.
fn extra_devices(metadata: &Path) -> io::Result<u16> {
    let mut superblock = [0u8; 128];
    File::open(metadata)?.read_exact_at(&mut superblock, SUPERBLOCK)?;
    if superblock[..4] != MAGIC.to_le_bytes() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: not EROFS", metadata.display()),
        ));
    }
    Ok(u16::from_le_bytes([
        superblock[EXTRA_DEVICES],
        superblock[EXTRA_DEVICES + 1],
    ]))
}
