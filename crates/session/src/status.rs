//! The status channel: a socket pair between the parent and one forked child, for the time until the program
//! is executed. End of file without [`Status::Failed`] means executed, or killed; the parent tells which.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use crate::plan::{Failure, FileReport};

/// Longest message of a child.
const MAX_MESSAGE: usize = 16 * 1024;
/// Most descriptors with a message.
const MAX_FDS: usize = 4;
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Child to parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// `ResolveUser` found the user (IDs inside the sandbox); the child waits for one byte.
    Resolved {
        /// User.
        uid: u32,
        /// Primary group.
        gid: u32,
    },
    /// The descriptors with this message are to be held with the object, after those it has.
    Held,
    /// A step failed; the child exits.
    Failed(Failure),
    /// A file operation has opened and checked its file.
    Began,
    /// A file operation is over; the child exits.
    Report(FileReport),
}

/// What the parent reads.
#[derive(Debug)]
pub enum Received {
    /// A message, and the descriptors that came with it.
    Status(Box<Status>, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The child's end is closed: it was executed, it exited, or it was killed.
    Closed,
}

/// A channel: the parent's end (non-blocking) and the child's.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (parent, child) = net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fcntl_setfl(&parent, rustix::fs::OFlags::NONBLOCK)?;
    Ok((parent, child))
}

/// Send to the parent. A parent that is gone needs no message.
pub(crate) fn tell(channel: BorrowedFd<'_>, status: &Status) {
    if let Ok(mut bytes) = rmp_serde::to_vec_named(status) {
        if bytes.len() > MAX_MESSAGE {
            let cut = Status::Failed(Failure {
                step: "status".to_owned(),
                errno: libc::EMSGSIZE,
                message: "the message of the child is too long".to_owned(),
            });
            bytes = rmp_serde::to_vec_named(&cut).unwrap_or_default();
        }
        let _gone = net::sendmsg(
            channel,
            &[IoSlice::new(&bytes)],
            &mut SendAncillaryBuffer::default(),
            SendFlags::NOSIGNAL,
        );
    }
}

/// Send a message with descriptors, which the parent must get: nobody else will have them.
pub(crate) fn send(
    channel: BorrowedFd<'_>,
    status: &Status,
    fds: &[&OwnedFd],
) -> Result<(), Errno> {
    let bytes = rmp_serde::to_vec_named(status).map_err(|_| Errno::INVAL)?;
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::MSGSIZE);
    }
    let message = [IoSlice::new(&bytes)];
    net::sendmsg(channel, &message, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Wait for the parent's one byte; false when it is gone.
pub(crate) fn wait_for_go(channel: BorrowedFd<'_>) -> bool {
    let mut byte = [0_u8; 1];
    loop {
        match net::recv(channel, &mut byte, RecvFlags::empty()) {
            Ok((_, length)) => return length == 1,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Let the child go on.
///
/// # Errors
/// When the child is gone.
pub fn go(channel: impl AsFd) -> Result<(), Errno> {
    net::send(channel, b"1", SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// One message of the child, without waiting.
///
/// # Errors
/// When the channel itself fails; a message that is none is a failure of the child.
pub fn receive(channel: impl AsFd) -> Result<Received, Errno> {
    let mut buffer = vec![0_u8; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = &mut [IoSliceMut::new(&mut buffer)];
    let length = match net::recvmsg(channel, message, &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET) => return Ok(Received::Closed),
        Err(errno) => return Err(errno),
    };
    if length == 0 {
        return Ok(Received::Closed);
    }
    let status = rmp_serde::from_slice(&buffer[..length]).unwrap_or_else(|error| {
        Status::Failed(Failure {
            step: "status".to_owned(),
            errno: 0,
            message: format!("the child sent what is no message: {error}"),
        })
    });
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    Ok(Received::Status(Box::new(status), fds))
}
