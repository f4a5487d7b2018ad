//! A packet connection that never makes this process wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use dsec_proto::packet;
use rustix::net::{
    connect, socket_with, socketpair, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::table;

/// A peer that does not read so many packets is given up.
const UNREAD: usize = 3 * crate::journal::MOST;

/// One end.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    outgoing: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

impl Link {
    /// Connects to a listening socket and gives it one end of a pair.
    ///
    /// # Errors
    /// The errno.
    pub fn dial(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&stream, &SocketAddrUnix::new(path)?)?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        packet::send(stream.as_fd(), &[0], &[theirs.as_fd()])?;
        Self::new(ours)
    }

    /// The end that came with the byte on a connection that was just accepted.
    ///
    /// # Errors
    /// `WouldBlock` when it has not come yet.
    pub fn accept(stream: &OwnedFd) -> io::Result<Self> {
        let mut byte = Vec::new();
        let mut fds = packet::receive(stream, &mut byte)?;
        Self::new(fds.pop().ok_or(io::ErrorKind::UnexpectedEof)?)
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: table::aside(socket)?,
            outgoing: VecDeque::new(),
        })
    }

    /// Sends now or when there is room.
    ///
    /// # Errors
    /// When the peer is gone, or does not read.
    pub fn tell(&mut self, message: &impl Serialize, fds: Vec<OwnedFd>) -> io::Result<()> {
        if self.outgoing.len() >= UNREAD {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
        self.outgoing.push_back((bytes, fds));
        self.flush()
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some((bytes, fds)) = self.outgoing.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match packet::send(self.socket.as_fd(), bytes, &borrowed) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether something waits for room.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next packet, if one is there.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer is gone; what is no message of the protocol.
    pub fn hear<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut buffer = Vec::new();
        let fds = match packet::receive(&self.socket, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = rmp_serde::from_slice(&buffer).map_err(io::Error::other)?;
        let fds = fds.into_iter().map(table::aside);
        Ok(Some((message, fds.collect::<io::Result<_>>()?)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
