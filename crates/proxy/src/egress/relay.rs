//! Bytes both ways until both sides have said their last, counted and slowed as the policy says.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::egress::Reason;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::{coop::consume_budget, yield_now};

use super::pipes::{self, Pipe};
use super::sandbox::Outward;

/// Who sends so much at once sends much: its bytes are not read, they go from socket to socket inside the kernel.
const MUCH: usize = 16 * 1024;
const ROOM: usize = 64 * 1024;
const SLOWED: usize = 4 * 1024;

thread_local! {
    /// What is read and written within one call: no connection has a buffer of its own but for what has to wait.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM].into());
}

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
    far: TcpStream,
    head: &[u8],
) -> (Ended, TcpStream) {
    let out = async {
        outward.wait(pay(outward, true, head.len())?).await;
        write_all(&far, head).await?;
        copy(outward, true, &near, &far).await
    };
    let ended = match tokio::try_join!(out, copy(outward, false, &far, &near)) {
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
    from: &TcpStream,
    to: &TcpStream,
) -> io::Result<()> {
    let mut much = false;
    loop {
        from.readable().await?;
        let pipe = much.then(|| pipes::take(&outward.pipes)).flatten();
        let moved = match pipe {
            Some(pipe) => through(outward, sends, from, to, pipe).await,
            None => Ok(0),
        };
        let moved = match moved {
            // Before urgent data there is nothing for a pipe, or an end that is none: reading goes past it.
            Ok(0) => across(outward, sends, from, to).await,
            moved => {
                // So much may have moved that others have waited for long.
                yield_now().await;
                moved
            }
        };
        match moved {
            Ok(0) => return end(to),
            Ok(count) => much = count >= MUCH,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        consume_budget().await;
    }
}

/// Moves what there is by a pipe: how much that was, 0 where a pipe takes nothing.
async fn through(
    outward: &Rc<Outward>,
    sends: bool,
    from: &TcpStream,
    to: &TcpStream,
    mut pipe: Pipe,
) -> io::Result<usize> {
    // Whether there is nothing to read is not for a pipe to say.
    let count = from.try_io(Interest::READABLE, || match pipe.fill(from) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        filled => filled,
    })?;
    if count == 0 {
        return Ok(0);
    }
    outward.wait(pay(outward, sends, count)?).await;
    while pipe.within > 0 {
        match to.try_io(Interest::WRITABLE, || pipe.empty(to)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            emptied => emptied?,
        }
    }
    Ok(count)
}

/// Moves what there is by a buffer.
async fn across(
    outward: &Rc<Outward>,
    sends: bool,
    from: &TcpStream,
    to: &TcpStream,
) -> io::Result<usize> {
    // Slowed ones go in small parts.
    let slowed = outward.policy().table.max_bytes_per_s.is_some();
    let room = if slowed { SLOWED } else { ROOM };
    let (count, wait, left) = SCRATCH.with_borrow_mut(|scratch| {
        let count = from.try_read(&mut scratch[..room])?;
        let wait = pay(outward, sends, count)?;
        let read = &scratch[..count];
        let written = match read {
            [] => 0,
            _ if !wait.is_zero() => 0,
            _ => write(to, read)?,
        };
        io::Result::Ok((count, wait, read[written..].to_vec()))
    })?;
    if !left.is_empty() {
        outward.wait(wait).await;
        write_all(to, &left).await?;
    }
    Ok(count)
}

/// What is taken at once, which may be nothing.
fn write(to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match to.try_write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written,
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(to, bytes)? {
            0 => to.writable().await?,
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

fn end(to: &TcpStream) -> io::Result<()> {
    rustix::net::shutdown(to, rustix::net::Shutdown::Write).map_err(Into::into)
}

/// Counts bytes before they pass: how long they have to wait.
fn pay(outward: &Outward, sends: bool, count: usize) -> io::Result<Duration> {
    match count {
        0 => Ok(Duration::ZERO),
        _ => outward
            .pass(sends, count as u64)
            .ok_or_else(|| io::ErrorKind::QuotaExceeded.into()),
    }
}

/// Lets a connection end with a reset, so that nobody takes what came for all there is.
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
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
