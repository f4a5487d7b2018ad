//! The pool: a btrfs in a file, made afresh at each boot.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config::Config;
use crate::kernel::btrfs::Pool;
use crate::kernel::mounts::{self, attr, Configuring};
use crate::kernel::{loops, sys};

const MIB: u64 = 1 << 20;
const MOST_BY_DEFAULT: u64 = 64 << 30;
/// Seconds between two commits.
const COMMIT_S: &str = "10";
/// btrfs does not begin below this.
const LEAST: u64 = 256 * MIB;

/// The machine's present boot.
///
/// # Errors
/// When /proc is not mounted.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .into())
}

/// Mounts the pool of this boot, or takes over the one that is mounted.
///
/// # Errors
/// The step that failed and why.
pub fn open(config: &Config) -> io::Result<Pool> {
    let target = config.pool_mount();
    let shut = target.parent().unwrap_or(&target);
    match DirBuilder::new().mode(0o700).create(shut) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => std::fs::create_dir_all(&target)?,
    }
    if !is_mounted(&target)? {
        let image = &config.pool_image;
        if made_in(image).as_deref() != Some(&boot_id()?) {
            make(config, image)?;
        }
        let device = match loops::find(image)? {
            Some(device) => device,
            None => loops::attach(image)?,
        };
        let source = device.to_str().unwrap_or_default();
        let pool = Configuring::new("btrfs")?
            .set("source", source)?
            .flag("nobarrier")?
            .flag("nodiscard")?
            // The space of what was deleted comes back in two commits, which are 30 s apart otherwise.
            .set("commit", COMMIT_S)?;
        mounts::attach(
            &pool.mount(attr::NOSUID | attr::NODEV | attr::NOATIME)?,
            &target,
        )?;
    }
    // An earlier version made it for anybody to read, and with it all that sandboxes write.
    std::fs::set_permissions(&config.pool_image, Permissions::from_mode(0o600))?;
    let pool = Pool::at(&target)?;
    pool.enable_simple_quota()?;
    Ok(pool)
}

fn is_mounted(target: &Path) -> io::Result<bool> {
    Ok(mounts::mounted()?
        .iter()
        .any(|(path, kind, _)| kind == "btrfs" && Path::new(path) == target))
}

fn stamp(image: &Path) -> PathBuf {
    image.with_extension("boot")
}

fn made_in(image: &Path) -> Option<String> {
    image
        .exists()
        .then(|| std::fs::read_to_string(stamp(image)).ok())
        .flatten()
}

fn make(config: &Config, image: &Path) -> io::Result<()> {
    let _ = std::fs::remove_file(stamp(image));
    if image.exists() {
        if let Some(stale) = loops::find(image)? {
            loops::detach(&stale)?;
        }
        std::fs::remove_file(image)?;
    }
    let size = match config.pool_mib {
        Some(mib) => mib * MIB,
        None => default_size(&config.data_dir)?,
    };
    if size < LEAST {
        return Err(io::Error::other(format!(
            "the pool would have {} MiB; it needs 256",
            size / MIB
        )));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(image)?;
    // SAFETY: plain numbers on our own descriptor.
    sys::check(libc::c_long::from(unsafe {
        libc::fallocate(file.as_raw_fd(), 0, 0, size as libc::off_t)
    }))?;
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-K", "-d", "single", "-m", "single"])
        .arg(image)
        .output()?;
    if !made.status.success() {
        return Err(io::Error::other(format!(
            "mkfs.btrfs: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        )));
    }
    std::fs::write(stamp(image), boot_id()?)
}

fn default_size(directory: &Path) -> io::Result<u64> {
    let directory = File::open(directory)?;
    // SAFETY: all-zero is a valid value, and the call fills it.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the result.
    sys::check(libc::c_long::from(unsafe {
        libc::fstatvfs(directory.as_raw_fd(), &mut found)
    }))?;
    let half = found.f_bavail * found.f_frsize / 2;
    Ok(half.min(MOST_BY_DEFAULT) / MIB * MIB)
}

/// Unmounts the pool and lets its loop device and file go.
///
/// # Errors
/// EBUSY while a sandbox still has it.
pub fn close(config: &Config) -> io::Result<()> {
    let target = config.pool_mount();
    if is_mounted(&target)? {
        mounts::unmount(&target, false)?;
    }
    if config.pool_image.exists() && std::fs::metadata(&config.pool_image)?.size() > 0 {
        if let Some(device) = loops::find(&config.pool_image)? {
            loops::detach(&device)?;
        }
    }
    let _ = std::fs::remove_dir(&target);
    let _ = target.parent().map(std::fs::remove_dir);
    let _ = std::fs::remove_file(stamp(&config.pool_image));
    std::fs::remove_file(&config.pool_image).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}
