//! epoll with tokens that say what a descriptor is.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// What woke the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Signals,
    Listener,
    /// A connection by number.
    Connection(u32),
    /// The status channel of the child with this PID.
    Channel(i32),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, value) = match self {
            Self::Signals => (0, 0),
            Self::Listener => (1, 0),
            Self::Connection(number) => (2, number),
            Self::Channel(pid) => (3, pid.cast_unsigned()),
        };
        kind << 32 | u64::from(value)
    }

    fn decode(data: u64) -> Self {
        let value = data as u32;
        match data >> 32 {
            0 => Self::Signals,
            1 => Self::Listener,
            2 => Self::Connection(value),
            _ => Self::Channel(value.cast_signed()),
        }
    }
}

/// The set of descriptors waited for.
#[derive(Debug)]
pub(crate) struct Poll(OwnedFd);

impl Poll {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Wait for input (or a hang-up) of `fd`.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(
            &self.0,
            fd,
            EventData::new_u64(token.encode()),
            EventFlags::IN,
        )
    }

    /// Wait for input, for room to write, or both.
    pub(crate) fn change(
        &self,
        fd: impl AsFd,
        token: Token,
        read: bool,
        write: bool,
    ) -> Result<(), Errno> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        epoll::modify(&self.0, fd, EventData::new_u64(token.encode()), flags)
    }

    /// Forget `fd`. Closing alone would not do while a forked child still has a copy.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _unknown = epoll::delete(&self.0, fd);
    }

    /// What is ready, after at most `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Token>, Errno> {
        let mut events = Vec::with_capacity(64);
        let limit = timeout.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events),
            limit.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(events
            .iter()
            .map(|event| Token::decode(event.data.u64()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    /// A token survives its way through the kernel.
    #[test]
    fn tokens_round_trip() {
        for token in [
            Token::Signals,
            Token::Listener,
            Token::Connection(u32::MAX),
            Token::Channel(4_194_304),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
