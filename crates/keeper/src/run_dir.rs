//! The run directory: one keeper at a time, and its socket.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketType;

use crate::listeners;
use crate::note::StartError;

/// Exit code when another keeper holds the directory.
const HELD: u8 = 4;

#[derive(Debug)]
pub(crate) struct RunDir {
    pub(crate) path: PathBuf,
    pub(crate) lock: OwnedFd,
    pub(crate) listener: OwnedFd,
}

impl RunDir {
    /// Lock the directory and listen in it.
    pub(crate) fn open(path: &Path) -> Result<Self, StartError> {
        let failed = |what: &str, error: String| {
            StartError::failed(
                "run_dir",
                path.display().to_string(),
                format!("{what}: {error}"),
            )
        };
        std::fs::create_dir_all(path)
            .map_err(|error| failed("make the directory", error.to_string()))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(path.join("lock"), flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| failed("open the lock", errno.to_string()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(held(path)),
            Err(errno) => return Err(failed("lock", errno.to_string())),
        }
        let socket = path.join("keeper.sock");
        let listener = listeners::unix(&socket, 0o600, SocketType::SEQPACKET)
            .map_err(|errno| failed("listen on keeper.sock", errno.to_string()))?;
        rustix::io::ioctl_fionbio(&listener, true)
            .map_err(|errno| failed("listen on keeper.sock", errno.to_string()))?;
        Ok(Self {
            path: path.to_owned(),
            lock,
            listener,
        })
    }

    /// Where the keeper writes once it is detached.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("keeper.log")
    }

    pub(crate) fn remove_socket(&self) {
        let _gone = std::fs::remove_file(self.path.join("keeper.sock"));
    }
}

fn held(path: &Path) -> StartError {
    StartError {
        exit_code: HELD,
        code: "already_running",
        message: format!("another keeper holds {}", path.join("lock").display()),
        subject: path.display().to_string(),
    }
}
