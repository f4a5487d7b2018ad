//! Mounts by descriptor: nothing here is attached to a path unless its name says so.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::sys::{c, check, owned};

/// MOUNT_ATTR_* bits.
pub mod attr {
    /// Read-only.
    pub const RDONLY: u64 = 1;
    /// Set-user-ID bits mean nothing.
    pub const NOSUID: u64 = 2;
    /// Device nodes cannot be opened.
    pub const NODEV: u64 = 4;
    /// Nothing can be executed.
    pub const NOEXEC: u64 = 8;
    /// Access times stay.
    pub const NOATIME: u64 = 0x10;
    /// Mapped by a user namespace.
    pub const IDMAP: u64 = 0x0010_0000;
}

const FSOPEN_CLOEXEC: libc::c_long = 1;
const FSMOUNT_CLOEXEC: libc::c_long = 1;
const FSCONFIG_SET_FLAG: libc::c_long = 0;
const FSCONFIG_SET_STRING: libc::c_long = 1;
const FSCONFIG_CMD_CREATE: libc::c_long = 6;
const OPEN_TREE_CLONE: libc::c_long = 1;
const OPEN_TREE_CLOEXEC: libc::c_long = libc::O_CLOEXEC as libc::c_long;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_long = 4;

/// A filesystem that is being configured.
pub struct Configuring(OwnedFd);

impl Configuring {
    /// Begins a filesystem of this type.
    ///
    /// # Errors
    /// ENODEV when the kernel does not have it.
    pub fn new(kind: &str) -> io::Result<Self> {
        let kind = c(kind)?;
        // SAFETY: `kind` is a valid string for the time of the call.
        Ok(Self(owned(unsafe {
            libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC)
        })?))
    }

    fn config(
        &self,
        command: libc::c_long,
        key: *const libc::c_char,
        value: *const libc::c_char,
    ) -> io::Result<()> {
        // SAFETY: `key` and `value` are null or valid strings that the callers hold.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.0.as_raw_fd(),
                command,
                key,
                value,
                0,
            )
        })?;
        Ok(())
    }

    /// Sets an option to a text.
    ///
    /// # Errors
    /// EINVAL for an option or value that the filesystem does not take, with its own words.
    pub fn set(self, key: &str, value: &str) -> io::Result<Self> {
        let (name, text) = (c(key)?, c(value)?);
        match self.config(FSCONFIG_SET_STRING, name.as_ptr(), text.as_ptr()) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.explained(&format!("{key}={value}"), error)),
        }
    }

    /// Sets an option that takes no value.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn flag(self, key: &str) -> io::Result<Self> {
        let name = c(key)?;
        match self.config(FSCONFIG_SET_FLAG, name.as_ptr(), std::ptr::null()) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.explained(key, error)),
        }
    }

    /// Makes the filesystem and a detached mount of it.
    ///
    /// # Errors
    /// What the filesystem says.
    pub fn mount(self, attributes: u64) -> io::Result<OwnedFd> {
        if let Err(error) = self.config(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null()) {
            return Err(self.explained("create", error));
        }
        // SAFETY: plain numbers.
        owned(unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                self.0.as_raw_fd(),
                FSMOUNT_CLOEXEC,
                attributes,
            )
        })
    }

    /// The error with the message that the kernel keeps in the context.
    fn explained(&self, what: &str, error: io::Error) -> io::Error {
        let mut text = [0u8; 256];
        // SAFETY: `text` has room for as many bytes as are asked for.
        let got = unsafe { libc::read(self.0.as_raw_fd(), text.as_mut_ptr().cast(), text.len()) };
        let said = String::from_utf8_lossy(&text[..got.max(0) as usize]);
        io::Error::new(error.kind(), format!("{what}: {error} {}", said.trim_end()))
    }
}

/// A detached private copy of the mount at a path.
///
/// # Errors
/// The errno.
pub fn clone_at(dir: RawFd, path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let text = c(path.as_os_str().as_encoded_bytes())?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::c_long::from(flags);
    // SAFETY: `text` is a valid string for the time of the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, dir, text.as_ptr(), flags) })
}

/// A detached private copy of the mount at an absolute path.
///
/// # Errors
/// The errno.
pub fn clone(path: &Path) -> io::Result<OwnedFd> {
    clone_at(libc::AT_FDCWD, path, 0)
}

/// A detached copy of a detached mount, with its attributes.
///
/// # Errors
/// EINVAL before Linux 6.15.
pub fn copy(mount: &OwnedFd) -> io::Result<OwnedFd> {
    clone_at(mount.as_raw_fd(), Path::new(""), libc::AT_EMPTY_PATH)
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Sets attributes of a detached mount; with `idmap` its IDs are seen through that user namespace.
///
/// # Errors
/// EINVAL when the filesystem cannot be ID-mapped.
pub fn set_attributes(mount: &OwnedFd, set: u64, idmap: Option<&OwnedFd>) -> io::Result<()> {
    let attributes = MountAttr {
        set: set | if idmap.is_some() { attr::IDMAP } else { 0 },
        clear: 0,
        propagation: 0,
        userns: idmap.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the structure is valid, its size is given, the path is the empty string.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::c_long::from(libc::AT_EMPTY_PATH),
            &attributes,
            std::mem::size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Puts a detached mount at a path of the calling thread's namespace.
///
/// # Errors
/// The errno.
pub fn attach(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    let target = c(target.as_os_str().as_encoded_bytes())?;
    // SAFETY: both strings are valid for the time of the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Unmounts what is at a path; `lazily` even while it is in use.
///
/// # Errors
/// EBUSY when it is in use, EINVAL when nothing is mounted there.
pub fn unmount(target: &Path, lazily: bool) -> io::Result<()> {
    let target = c(target.as_os_str().as_encoded_bytes())?;
    let flags = if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: a valid string.
    check(libc::c_long::from(unsafe {
        libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW)
    }))?;
    Ok(())
}

/// Makes all mounts of the calling thread's namespace private.
///
/// # Errors
/// The errno.
pub fn make_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: strings are literals, the rest is null as the call allows.
    check(libc::c_long::from(unsafe {
        libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    }))?;
    Ok(())
}

/// Mount points of the calling thread's namespace: (path, filesystem type, source).
///
/// # Errors
/// When mountinfo cannot be read.
pub fn mounted() -> io::Result<Vec<(String, String, String)>> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo")?;
    Ok(text.lines().filter_map(mountinfo_line).collect())
}

fn mountinfo_line(line: &str) -> Option<(String, String, String)> {
    let (left, right) = line.split_once(" - ")?;
    let path = left.split(' ').nth(4)?;
    let mut right = right.split(' ');
    Some((
        unescaped(path),
        right.next()?.into(),
        unescaped(right.next()?),
    ))
}

/// mountinfo writes blanks and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = text
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let (b'\\', Some(byte)) = (bytes[at], octal) {
            out.push(byte);
            at += 4;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of mountinfo gives its path with blanks restored, its type and its source.
    #[test]
    fn mountinfo_is_unescaped() {
        let line = r"36 35 98:0 / /mnt/a\040b rw,noatime master:1 - erofs /x\134y rw";
        let expected = (
            "/mnt/a b".to_owned(),
            "erofs".to_owned(),
            r"/x\y".to_owned(),
        );
        assert_eq!(mountinfo_line(line), Some(expected));
    }
}
