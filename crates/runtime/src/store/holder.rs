//! The runtime's side of the layer holder. It blocks, and so is used on the threads of the layers' namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dsec_proto::loading::{FromHolder, ToHolder, VERSION};
use dsec_proto::packet;

use crate::kernel::sys;

/// For an answer: readers of a layer wait as long for a store that is away.
const PATIENCE: Duration = Duration::from_secs(30);
/// For what is asked again at the next occasion.
const BRIEF: Duration = Duration::from_secs(5);

/// The way to it. Each question has a connection of its own: there are few.
#[derive(Debug)]
pub struct Holder {
    socket: PathBuf,
}

impl Holder {
    /// The one that serves this socket.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Has reads of a layer's data wait until they are filled. The layer may be mounted when this returns, not before. Returns
    /// what [`Self::close`] is told; nothing when all of it is here.
    ///
    /// # Errors
    /// Why it cannot be filled, or that the holder does not answer.
    pub fn open(&self, digest: &str, directory: &Path) -> io::Result<Option<u32>> {
        self.opened(digest, directory, PATIENCE)
    }

    /// The same of a layer that is mounted already: what it is to be closed as.
    ///
    /// # Errors
    /// As with [`Self::open`].
    pub fn number(&self, digest: &str, directory: &Path) -> io::Result<Option<u32>> {
        self.opened(digest, directory, BRIEF)
    }

    fn opened(
        &self,
        digest: &str,
        directory: &Path,
        patience: Duration,
    ) -> io::Result<Option<u32>> {
        let directory = File::open(directory)?;
        let open = ToHolder::Open {
            turn: 1,
            digest: digest.into(),
        };
        match self.ask(&open, &[directory.as_fd()], patience)? {
            FromHolder::Opened { layer, .. } => Ok(layer),
            FromHolder::Refused { reason, .. } => Err(io::Error::other(reason)),
            other => Err(io::Error::other(format!("unexpected answer {other:?}"))),
        }
    }

    /// Lets go of a layer that nobody has mounted any more.
    ///
    /// # Errors
    /// When the holder does not answer.
    pub fn close(&self, digest: &str, layer: u32) -> io::Result<()> {
        let close = ToHolder::Close {
            turn: 1,
            layer,
            digest: digest.into(),
        };
        self.ask(&close, &[], BRIEF).map(drop)
    }

    /// Asks, and asks its successor when the holder dies in between: everything may be said twice.
    fn ask(
        &self,
        message: &ToHolder,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> io::Result<FromHolder> {
        let end = Instant::now() + patience;
        loop {
            match self.attempt(message, fds, end) {
                Err(error) if Instant::now() < end => {
                    tracing::warn!("the layer holder: {error}");
                    std::thread::sleep(Duration::from_millis(50));
                }
                done => return done,
            }
        }
    }

    fn attempt(
        &self,
        message: &ToHolder,
        fds: &[BorrowedFd<'_>],
        end: Instant,
    ) -> io::Result<FromHolder> {
        let stream = UnixStream::connect(&self.socket)?;
        let (ours, theirs) = sys::packet_pair()?;
        packet::send(stream.as_fd(), &[0], &[theirs.as_fd()])?;
        drop(theirs);
        let hello = ToHolder::Hello { version: VERSION };
        packet::send(ours.as_fd(), &encoded(&hello)?, &[])?;
        packet::send(ours.as_fd(), &encoded(message)?, fds)?;
        loop {
            match receive(&ours, end)? {
                FromHolder::Hello { version } if version == VERSION => {}
                FromHolder::Hello { version } => {
                    return Err(io::Error::other(format!("it speaks version {version}")))
                }
                answer => return Ok(answer),
            }
        }
    }
}

fn encoded(message: &ToHolder) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(message).map_err(io::Error::other)
}

fn receive(socket: &OwnedFd, end: Instant) -> io::Result<FromHolder> {
    let mut buffer = Vec::new();
    loop {
        match packet::receive(socket, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = end.saturating_duration_since(Instant::now());
                let mut waits = libc::pollfd {
                    fd: socket.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one entry that outlives the call.
                let ready = unsafe { libc::poll(&raw mut waits, 1, left.as_millis() as i32) };
                if ready == 0 {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "it does not answer",
                    ));
                }
            }
            Ok(_) if buffer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return rmp_serde::from_slice(&buffer).map_err(io::Error::other),
            Err(error) => return Err(error),
        }
    }
}
