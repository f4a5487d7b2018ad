//! Loop devices, found by the file behind them: what happened before a restart is read from the kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::sys::check;

const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// The loop device whose backing file this is. Compared by device and inode, since the path in sysfs may be stale.
///
/// # Errors
/// When the file or sysfs cannot be read.
pub fn find(file: &Path) -> io::Result<Option<PathBuf>> {
    let wanted = std::fs::metadata(file)?;
    for entry in std::fs::read_dir("/sys/block")?.flatten() {
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let Ok(found) = std::fs::metadata(backing.trim_end()) else {
            continue;
        };
        if (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// A loop device over the file, with direct I/O so that nothing is cached twice.
///
/// # Errors
/// The errno; another process may take the free device first, which is tried again.
pub fn attach(file: &Path) -> io::Result<PathBuf> {
    let backing = OpenOptions::new().read(true).write(true).open(file)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    loop {
        // SAFETY: the call takes no argument.
        let number = check(libc::c_long::from(unsafe {
            libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE)
        }))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match configure(&device, &backing, LO_FLAGS_DIRECT_IO) {
            Ok(()) => return Ok(path),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // The file system below has no direct I/O.
                return configure(&device, &backing, 0).map(|()| path);
            }
            Err(error) => return Err(error),
        }
    }
}

fn configure(device: &File, backing: &File, flags: u32) -> io::Result<()> {
    // SAFETY: all-zero is a valid value of this structure of integers.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = backing.as_raw_fd() as u32;
    config.info.flags = flags;
    // SAFETY: the structure is what LOOP_CONFIGURE reads.
    check(libc::c_long::from(unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config)
    }))?;
    Ok(())
}

/// Lets the backing file go, at once or with the last user of the device.
///
/// # Errors
/// ENXIO when nothing was attached.
pub fn detach(device: &Path) -> io::Result<()> {
    let device = File::open(device)?;
    // SAFETY: the call takes no argument.
    check(libc::c_long::from(unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD)
    }))?;
    Ok(())
}
