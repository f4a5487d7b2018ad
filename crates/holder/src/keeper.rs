//! What the keeper holds for this process, so that its successor has it: the group, the journal, each layer's
//! descriptors. One call at a time, waited for: the keeper never waits for anybody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use dsec_proto::keeper::{Answer, Call, Message, Object, Request, VERSION};
use dsec_proto::packet;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;

use crate::table;

/// How long the holder outlives the keeper.
const LAST: Duration = Duration::from_secs(10);
/// A former holder's connection may not have been seen to be gone yet.
const PATIENCE: Duration = Duration::from_secs(5);

/// The connection.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
    next: u64,
}

impl Keeper {
    /// Connects and says hello.
    ///
    /// # Errors
    /// When there is no keeper, or another holder stays connected.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let end = Instant::now() + PATIENCE;
        loop {
            let socket = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            let mut keeper = Self {
                socket: table::aside(socket)?,
                next: 1,
            };
            let role = "holder".to_owned();
            let version = VERSION;
            match keeper.call(Call::Hello { version, role }, &[]) {
                Ok(_) => return Ok(keeper),
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks something and waits for the answer.
    ///
    /// # Errors
    /// `NotFound` for an object that is not there, `ResourceBusy`, or what the socket says.
    pub fn call(
        &mut self,
        call: Call,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let id = self.next;
        self.next += 1;
        let request = rmp_serde::to_vec_named(&Request { id, call }).map_err(io::Error::other)?;
        self.until(PollFlags::OUT, |socket| packet::send(socket, &request, fds))?;
        loop {
            let mut buffer = Vec::new();
            let fds = self.until(PollFlags::IN, |socket| {
                packet::receive(&socket, &mut buffer)
            })?;
            if buffer.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let message = rmp_serde::from_slice(&buffer).map_err(io::Error::other)?;
            match message {
                Message::Reply { id: of, result } if of == id => {
                    let answer = result.map_err(|refusal| {
                        let kind = match refusal.code.as_str() {
                            "unknown_object" => io::ErrorKind::NotFound,
                            "busy" => io::ErrorKind::ResourceBusy,
                            _ => io::ErrorKind::Other,
                        };
                        io::Error::new(kind, format!("the keeper: {}", refusal.message))
                    })?;
                    let fds = fds.into_iter().map(table::aside);
                    return Ok((answer, fds.collect::<io::Result<_>>()?));
                }
                _ => {}
            }
        }
    }

    /// Whether nobody is at the other end.
    fn is_gone(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut waits = [PollFd::new(&self.socket, PollFlags::empty())];
        let found = poll(&mut waits, Some(&now)).is_ok();
        found && waits[0].revents().contains(PollFlags::HUP)
    }

    /// To be called before the group is closed for good: without a keeper it is the last descriptor of it, and the kernel
    /// would let every reader through, to zeros. The runtime sees the same and kills them all in the meantime.
    pub fn outlive(&self) {
        if self.is_gone() {
            tracing::error!("the keeper is gone");
            std::thread::sleep(LAST);
        }
    }

    fn until<T>(
        &self,
        what: PollFlags,
        mut attempt: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match attempt(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.socket, what)], None)?;
                }
                done => return done,
            }
        }
    }

    /// Keeps descriptors under a name.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn put(&mut self, name: &str, tag: Vec<u8>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let call = Call::Put {
            object_id: name.to_owned(),
            tag,
            held: (0..fds.len() as u16).collect(),
        };
        self.call(call, fds).map(drop)
    }

    /// The descriptors of a name.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn fetch(&mut self, name: &str) -> io::Result<Vec<OwnedFd>> {
        let object_id = name.to_owned();
        Ok(self.call(Call::Fetch { object_id }, &[])?.1)
    }

    /// Lets go of a name.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn forget(&mut self, name: &str) -> io::Result<()> {
        let object_ids = vec![name.to_owned()];
        self.call(Call::Ack { object_ids }, &[]).map(drop)
    }

    /// All that is kept for the holder.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn list(&mut self) -> io::Result<Vec<Object>> {
        let mut all: Vec<Object> = Vec::new();
        loop {
            let after = all.last().map(|object| object.object_id.clone());
            match self.call(Call::List { after }, &[])?.0 {
                Answer::Objects { objects, more } => {
                    let done = !more || objects.is_empty();
                    all.extend(objects);
                    if done {
                        return Ok(all);
                    }
                }
                other => return Err(io::Error::other(format!("unexpected answer {other:?}"))),
            }
        }
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    /// A keeper that dies during a call is seen to be gone by then; one that lives is not, whether or not it answers.
    #[test]
    fn a_dead_keeper_is_gone() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        let mut keeper = Keeper {
            socket: ours,
            next: 1,
        };
        assert!(!keeper.is_gone());
        rustix::io::write(&theirs, b"what nobody asked for").expect("written");
        assert!(!keeper.is_gone());
        drop(theirs);
        keeper
            .call(Call::List { after: None }, &[])
            .expect_err("dead");
        assert!(keeper.is_gone());
    }
}
