//! Layers: EROFS file systems, each mounted once, on first use.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::kernel::mounts::{self, attr, Configuring};

const SUPERBLOCK: u64 = 1024;
const MAGIC: u32 = 0xE0F5_E1E2;
const EXTRA_DEVICES: usize = 86;

/// The layers of a node.
pub struct Layers {
    stores: Vec<PathBuf>,
    mounts: PathBuf,
    mounted: Mutex<HashSet<String>>,
}

impl Layers {
    /// Layers of these stores, mounted below `mounts`. What is mounted already is taken over.
    ///
    /// # Errors
    /// The errno.
    pub fn open(stores: Vec<PathBuf>, mounts: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&mounts)?;
        let known = mounts::mounted()?
            .into_iter()
            .filter(|(_, kind, _)| kind == "erofs");
        let names = known.filter_map(|(path, _, _)| {
            Some(
                Path::new(&path)
                    .strip_prefix(&mounts)
                    .ok()?
                    .to_str()?
                    .into(),
            )
        });
        let mounted = Mutex::new(names.collect());
        Ok(Self {
            stores,
            mounts,
            mounted,
        })
    }

    fn mounted(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.mounted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A detached copy of a layer's mount, seen through an ID map.
    ///
    /// # Errors
    /// `NotFound` when no store has the layer, else what the kernel says.
    pub fn copy(&self, digest: &str, idmap: &OwnedFd) -> io::Result<OwnedFd> {
        let target = self.mounts.join(digest);
        {
            let mut mounted = self.mounted();
            if !mounted.contains(digest) {
                self.mount(digest, &target)?;
                mounted.insert(digest.into());
            }
        }
        let copy = mounts::clone(&target)?;
        mounts::set_attributes(&copy, 0, Some(idmap))?;
        Ok(copy)
    }

    fn mount(&self, digest: &str, target: &Path) -> io::Result<()> {
        let mut stores = self.stores.iter().map(|store| store.join(digest));
        let Some(found) = stores.find(|path| path.join("metadata").is_file()) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no store has layer {digest}"),
            ));
        };
        std::fs::create_dir_all(target)?;
        let mount = mount_erofs(&found, true).or_else(|_| mount_erofs(&found, false))?;
        mounts::attach(&mount, target)
    }

    /// Unmounts those that are mounted. Returns their digests.
    pub fn evict(&self, digests: &[String]) -> Vec<String> {
        let mut mounted = self.mounted();
        let mut gone = Vec::new();
        for digest in digests {
            if mounted.contains(digest) && mounts::unmount(&self.mounts.join(digest), false).is_ok()
            {
                mounted.remove(digest);
                let _ = std::fs::remove_dir(self.mounts.join(digest));
                gone.push(digest.clone());
            }
        }
        gone
    }

    /// Unmounts all.
    pub fn close(&self) {
        let all: Vec<String> = self.mounted().iter().cloned().collect();
        self.evict(&all);
        let _ = std::fs::remove_dir(&self.mounts);
    }
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
