//! `ResolveUser`: reading the entered root's passwd and group files without trusting them.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::failing::{Doing, Fault};
use crate::in_root;
use crate::passwd::{self, Found, Missing};

/// Longer files are refused.
const MAX_BYTES: usize = 1024 * 1024;

/// Resolve `user` in the root of this process.
pub(crate) fn look_up(user: &str) -> Result<Found, Fault> {
    let passwd = read("/etc/passwd")?;
    passwd::resolve(user, &passwd, || {
        read("/etc/group").map_err(|fault| Missing::Unreadable(fault.message))
    })
    .map_err(|missing| match missing {
        Missing::Unknown(message) | Missing::Unreadable(message) => Fault::saying(message),
    })
}

/// The bytes of a regular file; none when it does not exist.
fn read(path: &str) -> Result<Vec<u8>, Fault> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match in_root::open_here(path.as_bytes(), flags) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
        Err(errno) => return Err(Fault::with(errno, format!("open {path}"))),
    };
    let kind = rustix::fs::fstat(&file)
        .doing(|| format!("look at {path}"))?
        .st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Err(Fault::saying(format!("{path} is not a regular file")));
    }
    read_bounded(&file, path)
}

fn read_bounded(file: &OwnedFd, path: &str) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let mut part = vec![0_u8; 16 * 1024];
    loop {
        let length = rustix::io::read(file, &mut part).doing(|| format!("read {path}"))?;
        if length == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&part[..length]);
        if bytes.len() > MAX_BYTES {
            return Err(Fault::saying(format!(
                "{path} is longer than {MAX_BYTES} bytes"
            )));
        }
    }
}
