//! Bytes through a pipe whose other end may have been made non-blocking, and records in them.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::Serialize;

/// Records are gathered up to so many bytes for one write.
const GATHERED: usize = 32 * 1024;

/// Write all of it; how much was written, and why not all.
pub(crate) fn write_all(output: BorrowedFd<'_>, bytes: &[u8]) -> (usize, Result<(), Errno>) {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(output, &bytes[done..]) {
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(output, PollFlags::OUT),
            Err(errno) => return (done, Err(errno)),
        }
    }
    (done, Ok(()))
}

/// Read what there is, waiting for something; 0 at the end.
pub(crate) fn read_some(input: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match rustix::io::read(input, &mut *buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(input, PollFlags::IN),
            result => return result,
        }
    }
}

/// The other side may have made the shared pipe non-blocking.
fn wait_for(pipe: BorrowedFd<'_>, what: PollFlags) {
    let _interrupted = rustix::event::poll(&mut [PollFd::new(&pipe, what)], None);
}

/// Records on their way to a pipe: 4 bytes of length, big endian, then msgpack.
pub(crate) struct Records<'a> {
    output: BorrowedFd<'a>,
    gathered: Vec<u8>,
    /// How many there were.
    pub(crate) count: u64,
}

impl<'a> Records<'a> {
    pub(crate) fn new(output: &'a impl AsFd) -> Self {
        Self {
            output: output.as_fd(),
            gathered: Vec::with_capacity(2 * GATHERED),
            count: 0,
        }
    }

    /// One more; written at once when enough have come together.
    pub(crate) fn add(&mut self, record: &impl Serialize) -> Result<(), Errno> {
        let start = self.gathered.len();
        self.gathered.extend([0; 4]);
        if rmp_serde::encode::write_named(&mut self.gathered, record).is_err() {
            return Err(Errno::NOMEM);
        }
        let length = u32::try_from(self.gathered.len() - start - 4).map_err(|_| Errno::NOMEM)?;
        self.gathered[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
        if self.gathered.len() >= GATHERED {
            self.flush()?;
        }
        Ok(())
    }

    /// Write what is gathered.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        let outcome = write_all(self.output, &self.gathered).1;
        self.gathered.clear();
        outcome
    }
}
