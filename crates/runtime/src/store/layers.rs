//! Layers: EROFS file systems, each mounted once, on first use.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::gone::Gone;
use super::holder::Holder;
use super::unclosed::Unclosed;
use crate::kernel::mounts::{self, attr, Configuring};

const SUPERBLOCK: u64 = 1024;
const MAGIC: u32 = 0xE0F5_E1E2;
const EXTRA_DEVICES: usize = 86;
/// How often a layer is mounted again that somebody evicts at that moment.
const TRIES: usize = 8;
/// What is not all here has this beside its data.
const FILLED: &str = "filled";

/// The layers of a node.
pub struct Layers {
    stores: Vec<PathBuf>,
    /// Fills what is not all here.
    holder: Option<Holder>,
    mounts: PathBuf,
    /// With the holder's number, where it fills them and this process mounted them or has asked since.
    mounted: Mutex<HashMap<String, Option<u32>>>,
    /// Held by whoever mounts or unmounts.
    turn: Mutex<Unclosed>,
}

impl Layers {
    /// Layers of these stores, mounted below `mounts`. What is mounted already is taken over.
    ///
    /// # Errors
    /// The errno.
    pub fn open(stores: Vec<PathBuf>, mounts: PathBuf, holder: Option<Holder>) -> io::Result<Self> {
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
        let mounted = Mutex::new(names.map(|name| (name, None)).collect());
        Ok(Self {
            stores,
            holder,
            mounts,
            mounted,
            turn: Mutex::default(),
        })
    }

    fn mounted(&self) -> std::sync::MutexGuard<'_, HashMap<String, Option<u32>>> {
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
        for _ in 0..TRIES {
            if !self.mounted().contains_key(digest) {
                self.bring(digest, &target)?;
            }
            // Unmounted between the two it would be the empty directory below, or nothing.
            match mounts::clone(&target)
                .and_then(|copy| is_erofs(&copy).then_some(copy).ok_or_else(unmounted))
            {
                Ok(copy) => {
                    mounts::set_attributes(&copy, 0, Some(idmap))?;
                    return Ok(copy);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.turn()),
                Err(error) => return Err(error),
            }
        }
        Err(unmounted())
    }

    /// Mounts a layer, one after the other, and none while others are unmounted: what the holder lets go must not be
    /// mounted at that moment.
    fn bring(&self, digest: &str, target: &Path) -> io::Result<()> {
        let mut unclosed = self.turn();
        if self.mounted().contains_key(digest) {
            return Ok(());
        }
        let number = self.fill(digest)?;
        let mounted = self.mount(digest, target);
        match (&mounted, number) {
            (Ok(()), number) => drop(self.mounted().insert(digest.into(), number)),
            (Err(_), Some(number)) => {
                unclosed.add(number, digest, None);
                self.let_go(&mut unclosed);
            }
            (Err(_), None) => {}
        }
        mounted
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, Unclosed> {
        self.turn
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
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

    /// Has the holder fill a layer that is not all here, before it is mounted: EROFS that was there first would ask
    /// nobody, and read zeros.
    fn fill(&self, digest: &str) -> io::Result<Option<u32>> {
        let found = self.find(digest)?;
        if !found.join(FILLED).exists() {
            return Ok(None);
        }
        match &self.holder {
            Some(holder) if found.parent() == self.stores.first().map(PathBuf::as_path) => {
                holder.open(digest, &found)
            }
            _ => Err(io::Error::other(format!(
                "layer {digest} is not all here, and this node does not fill it"
            ))),
        }
    }

    fn mount(&self, digest: &str, target: &Path) -> io::Result<()> {
        let found = self.find(digest)?;
        std::fs::create_dir_all(target)?;
        let mount = mount_erofs(&found, true).or_else(|_| mount_erofs(&found, false))?;
        mounts::attach(&mount, target)
    }

    /// Unmounts those that are mounted. Returns their digests.
    pub fn evict(&self, digests: &[String]) -> Vec<String> {
        let mut unclosed = self.turn();
        let mut gone = Vec::new();
        // Whoever does not answer once is not waited for again: all other layers wait meanwhile.
        let mut answers = true;
        for digest in digests {
            let target = self.mounts.join(digest);
            let Some(number) = self.mounted().get(digest).copied() else {
                continue;
            };
            let number = match number {
                None if answers => self.number_of(digest).unwrap_or_else(|error| {
                    tracing::warn!(layer = digest, "stays with the holder: {error}");
                    answers = false;
                    None
                }),
                number => number,
            };
            let watched = number.map(|number| (number, Gone::watch(&target)));
            if mounts::unmount(&target, false).is_ok() {
                self.mounted().remove(digest);
                let _ = std::fs::remove_dir(target);
                if let Some((number, system)) = watched {
                    unclosed.add(number, digest, Some(system));
                }
                gone.push(digest.clone());
            }
        }
        self.let_go(&mut unclosed);
        gone
    }

    /// What the holder fills a layer as that a former runtime mounted.
    fn number_of(&self, digest: &str) -> io::Result<Option<u32>> {
        let Some(holder) = &self.holder else {
            return Ok(None);
        };
        match self.find(digest) {
            Ok(found) if found.join(FILLED).exists() => holder.number(digest, &found),
            _ => Ok(None),
        }
    }

    /// The holder need not fill a layer any more once nobody can read it. While a file system of it lives it goes on.
    fn let_go(&self, unclosed: &mut Unclosed) {
        if let Some(holder) = &self.holder {
            let mounted = self
                .mounted()
                .values()
                .filter_map(|number| *number)
                .collect();
            unclosed.close(&mounted, |digest, number| holder.close(digest, number));
        }
    }

    /// Unmounts all.
    pub fn close(&self) {
        let all: Vec<String> = self.mounted().keys().cloned().collect();
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

fn unmounted() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the layer was unmounted meanwhile")
}

fn is_erofs(mount: &OwnedFd) -> bool {
    // SAFETY: all-zero is a valid value, and the call fills it.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the result.
    let done = unsafe { libc::fstatfs(mount.as_raw_fd(), &raw mut found) };
    done == 0 && found.f_type as u64 & 0xFFFF_FFFF == u64::from(MAGIC)
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
