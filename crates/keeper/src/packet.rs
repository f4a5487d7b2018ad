//! One SOCK_SEQPACKET packet with its descriptors, received or sent without waiting.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use dsec_proto::keeper::{MAX_FDS, MAX_PACKET};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Room for the control message of [`MAX_FDS`] descriptors.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// What came.
#[derive(Debug)]
pub(crate) enum Incoming {
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The peer is gone.
    Closed,
    /// Longer than allowed, or more descriptors than allowed.
    Broken(&'static str),
}

pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Incoming {
    buffer.resize(MAX_PACKET, 0);
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Incoming::Nothing,
        Err(_) => return Incoming::Closed,
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Incoming::Broken("a packet is too long");
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Incoming::Broken("a packet has too many descriptors");
    }
    if message.bytes == 0 {
        return Incoming::Closed;
    }
    Incoming::Packet(buffer[..message.bytes].to_vec(), fds)
}

/// Send one packet; `Errno::AGAIN` when there is no room now.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[Rc<OwnedFd>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}
