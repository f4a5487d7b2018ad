//! Bytes both ways until both sides have said their last, counted and slowed as the policy says.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use dsec_proto::egress::Reason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::sandbox::Outward;

const PART: usize = 64 * 1024;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have ended it.
    Whole,
    /// One side has broken it.
    Broken,
    /// The bytes are used up.
    UsedUp,
}

/// Sends `head`, then copies. One direction may end long before the other.
pub async fn run(
    outward: &Rc<Outward>,
    near: TcpStream,
    mut far: TcpStream,
    head: &[u8],
) -> (Ended, TcpStream) {
    let mut near = near;
    let ended = {
        let (near_reads, near_writes) = near.split();
        let (far_reads, mut far_writes) = far.split();
        let out = async {
            pass(outward, true, head.len()).await?;
            far_writes.write_all(head).await?;
            copy(outward, true, near_reads, far_writes).await
        };
        tokio::try_join!(out, copy(outward, false, far_reads, near_writes))
    };
    let ended = match ended {
        Ok(_) => Ended::Whole,
        Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => Ended::UsedUp,
        Err(_) => Ended::Broken,
    };
    if ended != Ended::Whole {
        reset(&far);
    }
    (ended, near)
}

async fn copy(
    outward: &Rc<Outward>,
    sends: bool,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(4096);
    loop {
        buffer.clear();
        let count = from.read_buf(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        pass(outward, sends, count).await?;
        to.write_all(&buffer).await?;
        // Who sends much gets more room, who waits keeps little.
        if count == buffer.capacity() && count < PART {
            buffer.reserve(count * 4);
        }
    }
}

async fn pass(outward: &Rc<Outward>, sends: bool, count: usize) -> io::Result<()> {
    match outward.pass(sends, count as u64) {
        None => Err(io::ErrorKind::QuotaExceeded.into()),
        Some(wait) if wait.is_zero() => Ok(()),
        Some(wait) => {
            outward.wait(wait).await;
            Ok(())
        }
    }
}

/// Lets a connection end with a reset, so that nobody takes what came for all there is.
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO));
}

/// Notes why a connection did not pass, and resets it.
pub fn refuse(
    outward: &Outward,
    stream: &TcpStream,
    reason: Reason,
    name: Option<&str>,
    to: SocketAddr,
) {
    outward
        .journal
        .refused(reason, name, Some((to.ip(), to.port())));
    reset(stream);
}
