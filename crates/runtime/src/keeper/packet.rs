//! Packets with descriptors over a non-blocking SOCK_SEQPACKET.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use dsec_proto::keeper::{Call, Request, MAX_FDS, MAX_PACKET};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::kernel::sys::{check, owned, sealed};

/// Room for the longest packet.
pub const ROOM: usize = MAX_PACKET + 4096;
const CONTROL: usize = 24 + 4 * MAX_FDS;

/// A connection to the keeper's socket.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain numbers, then an address whose size is given.
    unsafe {
        let socket = owned(libc::c_long::from(libc::socket(libc::AF_UNIX, kind, 0)))?;
        let length = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
        check(libc::c_long::from(libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length,
        )))?;
        Ok(socket)
    }
}

/// One packet, ready to be sent.
pub struct Packet {
    bytes: Vec<u8>,
    fds: Vec<RawFd>,
    _plan: Option<OwnedFd>,
}

impl Packet {
    /// A request as a packet; a plan that is too long for one goes into sealed memory.
    pub fn of(request: &Request, fds: &[RawFd]) -> io::Result<Self> {
        let encode = |request: &Request| rmp_serde::to_vec_named(request).map_err(io::Error::other);
        let mut packet = Self {
            bytes: encode(request)?,
            fds: fds.to_vec(),
            _plan: None,
        };
        if packet.bytes.len() > MAX_PACKET {
            let mut request = request.clone();
            if let Call::Spawn { plan, plan_fd, .. } = &mut request.call {
                let memory = sealed(
                    "plan",
                    &rmp_serde::to_vec_named(&plan.take()).map_err(io::Error::other)?,
                )?;
                *plan_fd = Some(packet.fds.len() as u16);
                packet.fds.push(memory.as_raw_fd());
                packet._plan = Some(memory);
            }
            packet.bytes = encode(&request)?;
        }
        if packet.bytes.len() > MAX_PACKET || packet.fds.len() > MAX_FDS {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        Ok(packet)
    }

    /// Sends it whole.
    pub async fn send(&self, socket: &AsyncFd<OwnedFd>) -> io::Result<()> {
        socket
            .async_io(Interest::WRITABLE, |fd| self.send_now(fd.as_raw_fd()))
            .await
    }

    fn send_now(&self, socket: RawFd) -> io::Result<()> {
        let mut control = [0u64; CONTROL / 8];
        let mut part = libc::iovec {
            iov_base: self.bytes.as_ptr() as *mut _,
            iov_len: self.bytes.len(),
        };
        // SAFETY: an all-zero header is valid; it then points to buffers that outlive the call, and the control
        // buffer is aligned and has room for MAX_FDS descriptors.
        unsafe {
            let mut header: libc::msghdr = mem::zeroed();
            header.msg_iov = &mut part;
            header.msg_iovlen = 1;
            if !self.fds.is_empty() {
                let payload = (self.fds.len() * mem::size_of::<RawFd>()) as u32;
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(payload) as _;
                let message = libc::CMSG_FIRSTHDR(&header);
                (*message).cmsg_level = libc::SOL_SOCKET;
                (*message).cmsg_type = libc::SCM_RIGHTS;
                (*message).cmsg_len = libc::CMSG_LEN(payload) as _;
                std::ptr::copy_nonoverlapping(
                    self.fds.as_ptr(),
                    libc::CMSG_DATA(message).cast(),
                    self.fds.len(),
                );
            }
            check(
                libc::sendmsg(socket, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
                    as libc::c_long,
            )?;
        }
        Ok(())
    }
}

/// Receives one packet: its length in `buffer`, 0 at the end of the connection, and its descriptors.
pub async fn receive(
    socket: &AsyncFd<OwnedFd>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    socket
        .async_io(Interest::READABLE, |fd| receive_now(fd.as_raw_fd(), buffer))
        .await
}

fn receive_now(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; CONTROL / 8];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: an all-zero header is valid; it then points to buffers that outlive the call. Control messages are walked
    // by the macros within the length that the kernel has set; each descriptor is new and taken once.
    unsafe {
        let mut header: libc::msghdr = mem::zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = mem::size_of_val(&control) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        let length = check(libc::recvmsg(socket, &mut header, flags) as libc::c_long)? as usize;
        let mut fds = Vec::new();
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS
            {
                let bytes = (*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(message).cast::<RawFd>();
                for index in 0..bytes / mem::size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(std::ptr::read_unaligned(
                        first.add(index),
                    )));
                }
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::other("a packet was cut short"));
        }
        Ok((length, fds))
    }
}
