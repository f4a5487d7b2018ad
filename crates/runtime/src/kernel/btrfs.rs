//! btrfs: subvolumes with simple quotas, through ioctls that btrfs-progs of Debian 12 does not know yet.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use dsec_weaken::keeps;

use super::sys::check;

const SUBVOL_CREATE_V2: libc::Ioctl = iow(24, 4096);
const SNAP_CREATE_V2: libc::Ioctl = iow(23, 4096);
const SNAP_DESTROY_V2: libc::Ioctl = iow(63, 4096);
const QUOTA_CTL: libc::Ioctl = iowr(40, 16);
const QGROUP_LIMIT: libc::Ioctl = ior(43, 48);
const QGROUP_CREATE: libc::Ioctl = iow(42, 16);
const INO_LOOKUP: libc::Ioctl = iowr(18, 4096);
const FS_INFO: libc::Ioctl = ior(31, 1024);

const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;
/// BTRFS_FIRST_FREE_OBJECTID.
const FIRST_SUBVOLUME: u64 = 256;

const fn ioc(direction: u64, number: u64, size: u64) -> libc::Ioctl {
    ((direction << 30) | (size << 16) | (0x94 << 8) | number) as libc::Ioctl
}
const fn iow(number: u64, size: u64) -> libc::Ioctl {
    ioc(1, number, size)
}
const fn ior(number: u64, size: u64) -> libc::Ioctl {
    ioc(2, number, size)
}
const fn iowr(number: u64, size: u64) -> libc::Ioctl {
    ioc(3, number, size)
}

fn call<T>(file: &File, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: each caller passes the structure whose size is part of the request's number.
    check(libc::c_long::from(unsafe {
        libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument))
    }))?;
    Ok(())
}

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct VolArgs {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

impl VolArgs {
    fn named(name: &str) -> io::Result<Self> {
        let mut args = Self {
            fd: 0,
            transid: 0,
            flags: 0,
            unused: [0; 4],
            name: [0; 4040],
        };
        if name.len() > 255 || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        args.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(args)
    }
}

/// A mounted btrfs.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its directory in sysfs.
    sysfs: PathBuf,
}

impl Pool {
    /// The pool that is mounted at `path`.
    ///
    /// # Errors
    /// When that is no btrfs.
    pub fn at(path: &Path) -> io::Result<Self> {
        let mut info = [0u8; 1024];
        call(&File::open(path)?, FS_INFO, &mut info)?;
        Ok(Self {
            path: path.into(),
            sysfs: Path::new("/sys/fs/btrfs").join(uuid(&info[16..32])),
        })
    }

    /// Counts space by the subvolume that wrote it first.
    ///
    /// # Errors
    /// EINVAL before Linux 6.7.
    pub fn enable_simple_quota(&self) -> io::Result<()> {
        call(
            &File::open(&self.path)?,
            QUOTA_CTL,
            &mut [QUOTA_ENABLE_SIMPLE, 0u64],
        )
    }

    /// A subvolume that can hold `limit` bytes. Returns its ID.
    ///
    /// # Errors
    /// EEXIST, ENOSPC.
    pub fn create(&self, name: &str, limit: u64) -> io::Result<u64> {
        let pool = File::open(&self.path)?;
        call(&pool, SUBVOL_CREATE_V2, &mut VolArgs::named(name)?)?;
        let id = subvolume_id(&File::open(self.path.join(name))?)?;
        if keeps!("quota") {
            self.limit(id, limit)?;
        }
        Ok(id)
    }

    /// From now on a subvolume can hold so many bytes.
    ///
    /// # Errors
    /// ENOENT.
    pub fn limit(&self, id: u64, limit: u64) -> io::Result<()> {
        // qgroup, flags, max_referenced, max_exclusive, two reservations.
        call(
            &File::open(&self.path)?,
            QGROUP_LIMIT,
            &mut [id, LIMIT_MAX_REFERENCED, limit, 0, 0, 0],
        )
    }

    /// A subvolume that begins as a copy of another, and can hold `limit` bytes more. Returns its ID.
    ///
    /// # Errors
    /// ENOENT, EEXIST, ENOSPC.
    pub fn copy(&self, from: &str, name: &str, limit: u64) -> io::Result<u64> {
        let pool = File::open(&self.path)?;
        let source = File::open(self.path.join(from))?;
        let mut args = VolArgs::named(name)?;
        args.fd = i64::from(source.as_raw_fd());
        call(&pool, SNAP_CREATE_V2, &mut args)?;
        let id = subvolume_id(&File::open(self.path.join(name))?)?;
        let limited = self.limit(id, limit);
        if limited.is_err() {
            let _ = self.delete(name);
        }
        limited.map(|()| id)
    }

    /// Deletes a subvolume. The space comes back later.
    ///
    /// # Errors
    /// ENOENT.
    pub fn delete(&self, name: &str) -> io::Result<()> {
        call(
            &File::open(&self.path)?,
            SNAP_DESTROY_V2,
            &mut VolArgs::named(name)?,
        )
    }

    /// Removes the counter of a deleted subvolume; EBUSY while the space is not yet back.
    ///
    /// # Errors
    /// The errno; ENOENT when the kernel has removed it already.
    pub fn drop_counter(&self, id: u64) -> io::Result<()> {
        call(&File::open(&self.path)?, QGROUP_CREATE, &mut [0, id])
    }

    /// Where the counters of a subvolume stand.
    #[must_use]
    pub fn counter_of(&self, id: u64) -> PathBuf {
        self.sysfs.join(format!("qgroups/0_{id}"))
    }

    /// Bytes of a subvolume, written or reserved for what is still in memory. Quick. `None` when it has no
    /// counter (any more).
    #[must_use]
    pub fn used_by(&self, id: u64) -> Option<u64> {
        let group = self.counter_of(id);
        let read = |name: &str| {
            super::sys::small_file(&group.join(name))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        Some(read("referenced")? + read("rsv_data").unwrap_or(0))
    }

    /// IDs of all subvolumes that are counted, deleted ones included until their space is back.
    #[must_use]
    pub fn counters(&self) -> Vec<u64> {
        let entries = std::fs::read_dir(self.sysfs.join("qgroups"));
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("0_")?.parse().ok();
        entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| number(entry.file_name()))
            .filter(|id| *id >= FIRST_SUBVOLUME)
            .collect()
    }

    /// Names of all subvolumes and directories at the top.
    ///
    /// # Errors
    /// The errno.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(std::fs::read_dir(&self.path)?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect())
    }

    /// Size and use in bytes. Quick.
    ///
    /// # Errors
    /// The errno.
    pub fn space(&self) -> io::Result<(u64, u64)> {
        let pool = File::open(&self.path)?;
        // SAFETY: all-zero is a valid value, and the call fills it.
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place for the result.
        check(libc::c_long::from(unsafe {
            libc::fstatvfs(pool.as_raw_fd(), &mut found)
        }))?;
        let unit = found.f_frsize;
        Ok((
            found.f_blocks * unit,
            (found.f_blocks - found.f_bfree) * unit,
        ))
    }
}

/// ID of the subvolume that the directory is the root of.
///
/// # Errors
/// ENOTTY on other file systems.
pub fn subvolume_id(directory: &File) -> io::Result<u64> {
    let mut args = [0u64; 512];
    args[1] = FIRST_SUBVOLUME; // the first free object ID: the root directory of any subvolume
    call(directory, INO_LOOKUP, &mut args)?;
    Ok(args[0])
}

fn uuid(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the ioctls are those of linux/btrfs.h.
    #[test]
    fn ioctl_numbers() {
        assert_eq!(SUBVOL_CREATE_V2, 0x5000_9418);
        assert_eq!(SNAP_CREATE_V2, 0x5000_9417);
        assert_eq!(QUOTA_CTL, 0xc010_9428);
        assert_eq!(QGROUP_LIMIT, 0x8030_942b);
        assert_eq!(std::mem::size_of::<VolArgs>(), 4096);
    }

    /// A UUID is written as sysfs names it.
    #[test]
    fn uuid_has_five_groups() {
        assert_eq!(uuid(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
