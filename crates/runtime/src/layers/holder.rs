//! The runtime's side of the layer holder: nobody waits for it but who asked.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use dsec_proto::loading::{FromHolder, Going, ToHolder, FULL, VERSION};
use dsec_proto::packet;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{timeout_at, Instant};

use crate::kernel::{poll, sys};

/// For what is asked again at the next occasion.
const BRIEF: Duration = Duration::from_secs(5);
/// For figures.
const GLANCE: Duration = Duration::from_secs(2);
/// Between attempts: the holder's socket is the keeper's and takes callers while no holder lives.
const AGAIN: Duration = Duration::from_millis(50);

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
    /// `QuotaExceeded` when it fills as many as it can; else why it cannot be filled, or that the holder does not answer by
    /// then.
    pub async fn open(
        &self,
        digest: &str,
        directory: &File,
        end: Instant,
    ) -> io::Result<Option<u32>> {
        let open = ToHolder::Open {
            turn: 1,
            digest: digest.into(),
        };
        match self.ask(&open, &[directory.as_fd()], end).await? {
            FromHolder::Opened { layer, .. } => Ok(layer),
            FromHolder::Refused { reason, .. } if reason == FULL => {
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, reason))
            }
            FromHolder::Refused { reason, .. } => Err(io::Error::other(reason)),
            other => Err(unexpected(&other)),
        }
    }

    /// The same of a layer that is mounted already: what it is to be closed as.
    ///
    /// # Errors
    /// As with [`Self::open`].
    pub async fn number(&self, digest: &str, directory: &File) -> io::Result<Option<u32>> {
        self.open(digest, directory, Instant::now() + BRIEF).await
    }

    /// Lets go of a layer that nobody has mounted any more.
    ///
    /// # Errors
    /// When the holder does not answer.
    pub async fn close(&self, digest: &str, layer: u32) -> io::Result<()> {
        let close = ToHolder::Close {
            turn: 1,
            layer,
            digest: digest.into(),
        };
        let end = Instant::now() + BRIEF;
        self.ask(&close, &[], end).await.map(drop)
    }

    /// How it goes, with the layers of larger numbers than `after`.
    ///
    /// # Errors
    /// When the holder does not answer.
    pub async fn going(&self, after: u32) -> io::Result<Going> {
        let ask = ToHolder::Ask { turn: 1, after };
        match self.ask(&ask, &[], Instant::now() + GLANCE).await? {
            FromHolder::Going { going, .. } => Ok(going),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and asks its successor when the holder dies in between: everything may be said twice.
    async fn ask(
        &self,
        message: &ToHolder,
        fds: &[BorrowedFd<'_>],
        end: Instant,
    ) -> io::Result<FromHolder> {
        loop {
            match timeout_at(end, self.attempt(message, fds)).await {
                Ok(Err(error)) if Instant::now() + AGAIN < end => {
                    tracing::warn!("the layer holder: {error}");
                    tokio::time::sleep(AGAIN).await;
                }
                Ok(done) => return done,
                Err(_) => {
                    let late = "the layer holder does not answer";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, late));
                }
            }
        }
    }

    async fn attempt(&self, message: &ToHolder, fds: &[BorrowedFd<'_>]) -> io::Result<FromHolder> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (ours, theirs) = sys::packet_pair()?;
        let hand_over = || packet::send(stream.as_fd(), &[0], &[theirs.as_fd()]);
        stream.async_io(Interest::WRITABLE, hand_over).await?;
        drop(theirs);
        let socket = poll::watch(ours, Interest::READABLE | Interest::WRITABLE)?;
        send(&socket, &ToHolder::Hello { version: VERSION }, &[]).await?;
        send(&socket, message, fds).await?;
        loop {
            match receive(&socket).await? {
                FromHolder::Hello { version } if version == VERSION => {}
                FromHolder::Hello { version } => {
                    return Err(io::Error::other(format!("it speaks version {version}")))
                }
                answer => return Ok(answer),
            }
        }
    }
}

fn unexpected(answer: &FromHolder) -> io::Error {
    io::Error::other(format!("unexpected answer {answer:?}"))
}

async fn send(
    socket: &AsyncFd<OwnedFd>,
    message: &ToHolder,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    let send = |fd: &OwnedFd| packet::send(fd.as_fd(), &bytes, fds);
    socket.async_io(Interest::WRITABLE, send).await
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<FromHolder> {
    let mut buffer = Vec::new();
    let receive = |fd: &OwnedFd| packet::receive(fd, &mut buffer);
    socket.async_io(Interest::READABLE, receive).await?;
    if buffer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    rmp_serde::from_slice(&buffer).map_err(io::Error::other)
}
