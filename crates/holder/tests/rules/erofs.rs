//! A layer of one or more files, and its mount: detached, so that nothing is left behind.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::{
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, FsMountFlags,
    FsOpenFlags, MountAttrFlags,
};

pub struct Made {
    pub directory: PathBuf,
    /// What `data` holds.
    pub bytes: Vec<u8>,
}

/// A directory of its own, gone at the end.
impl Made {
    /// A layer whose one file `f` has `size` bytes that are nowhere zero or equal for long, without its data.
    pub fn sparse(size: usize) -> Self {
        Self::without_data(&pattern(size))
    }

    /// A layer of one file `f`, a program for all who like; `data` is kept in memory and its file made anew, as long and
    /// without content.
    pub fn without_data(content: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holder-{}-{number}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let tree = directory.join("tree");
        fs::create_dir_all(&tree).expect("a directory");
        let own = tree.join("f");
        fs::write(&own, content).expect("written");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("changed");
        let data = directory.join("data");
        let made = Command::new("mkfs.erofs")
            .args(["--quiet", "--chunksize=4096"])
            .arg(format!("--blobdev={}", data.display()))
            .args([&directory.join("metadata"), &tree])
            .output()
            .expect("mkfs.erofs is installed");
        assert!(made.status.success(), "{made:?}");
        let bytes = fs::read(&data).expect("read");
        fs::remove_file(&data).expect("removed");
        let sparse = File::create(&data).expect("made");
        sparse.set_len(bytes.len() as u64).expect("a length");
        Self { directory, bytes }
    }

    pub fn data(&self) -> File {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .open(self.directory.join("data"))
            .expect("opened")
    }

    pub fn mount(&self) -> io::Result<OwnedFd> {
        self.mount_with(true)
    }

    /// `direct`: past the page cache of the file behind it.
    pub fn mount_with(&self, direct: bool) -> io::Result<OwnedFd> {
        let erofs = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let fs = erofs.as_fd();
        fsconfig_set_string(fs, "source", self.directory.join("metadata"))?;
        fsconfig_set_string(fs, "device", self.directory.join("data"))?;
        if direct {
            fsconfig_set_flag(fs, "directio")?;
        }
        fsconfig_create(fs)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
        Ok(fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Where the mount's file is, for this process and for children that inherit the mount.
pub fn file(mount: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/f", mount.as_raw_fd()))
}

pub fn pattern(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&(state | 1).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
