//! One SOCK_SEQPACKET packet with its descriptors, without waiting.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Longest packet.
pub const MAX_PACKET: usize = 128 * 1024;
/// Most descriptors of one.
pub const MAX_FDS: usize = 32;

const CONTROL: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Sends one packet, whole.
///
/// # Errors
/// `WouldBlock` when there is no room now; `InvalidInput` for more descriptors than a packet takes.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.len() > MAX_FDS || bytes.len() > MAX_PACKET {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives one packet and its descriptors. No bytes: the peer is gone.
///
/// # Errors
/// `WouldBlock` when there is none now; `InvalidData` for one that is too long, or has descriptors for which there is no
/// room.
pub fn receive(socket: &impl AsFd, buffer: &mut Vec<u8>) -> io::Result<Vec<OwnedFd>> {
    receive_any(socket, buffer)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Receives one packet and its descriptors; `None` in their place when this process had no room for all of them.
///
/// # Errors
/// `WouldBlock` when there is none now; `InvalidData` for one that is too long.
pub fn receive_any(socket: &impl AsFd, buffer: &mut Vec<u8>) -> io::Result<Option<Vec<OwnedFd>>> {
    buffer.resize(MAX_PACKET, 0);
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    buffer.truncate(message.bytes);
    let whole = !message.flags.intersects(ReturnFlags::CTRUNC);
    Ok(whole.then_some(fds))
}
