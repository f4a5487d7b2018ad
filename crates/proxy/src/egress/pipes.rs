//! Pipes by which bytes go from one socket to another inside the kernel. They are few, and whoever has one has it only
//! while bytes are in it: when all are taken, bytes go through a buffer.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{pipe_with, splice, PipeFlags, SpliceFlags};

/// At the same time; more would count against what the proxy may have open.
const MOST: usize = 128;
/// Of these, for one sandbox: the others are for others.
const MOST_EACH: usize = 32;
/// That are kept while nobody uses them.
const KEPT: usize = 8;
/// Read at once: what a pipe's places hold, were each full.
const ROOM: usize = 1 << 20;

#[derive(Default)]
struct Pool {
    idle: Vec<(OwnedFd, OwnedFd)>,
    lent: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// A pipe, until it is dropped.
pub struct Pipe {
    /// How many its sandbox has.
    of: Rc<Cell<usize>>,
    ends: Option<(OwnedFd, OwnedFd)>,
    /// Bytes in it.
    pub within: usize,
}

/// One, if there is one to be had. `of`: how many the sandbox has.
#[must_use]
pub fn take(of: &Rc<Cell<usize>>) -> Option<Pipe> {
    POOL.with_borrow_mut(|pool| {
        if pool.lent >= MOST || of.get() >= MOST_EACH {
            return None;
        }
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let ends = pool.idle.pop().or_else(|| pipe_with(flags).ok())?;
        pool.lent += 1;
        of.set(of.get() + 1);
        Some(Pipe {
            of: Rc::clone(of),
            ends: Some(ends),
            within: 0,
        })
    })
}

impl Pipe {
    /// Takes in what a socket has; 0 at its end.
    ///
    /// # Errors
    /// The errno; `WouldBlock` when it has nothing.
    pub fn fill(&mut self, from: impl AsFd) -> io::Result<usize> {
        let (_, end) = self.ends.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let count = splice(from, None, end, None, ROOM, flags())?;
        self.within += count;
        Ok(count)
    }

    /// Lets a socket have what it takes.
    ///
    /// # Errors
    /// The errno; `WouldBlock` when it takes nothing.
    pub fn empty(&mut self, to: impl AsFd) -> io::Result<()> {
        let (end, _) = self.ends.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let count = splice(end, None, to, None, self.within, flags())?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.within -= count;
        Ok(())
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

impl Drop for Pipe {
    fn drop(&mut self) {
        POOL.with_borrow_mut(|pool| {
            pool.lent -= 1;
            self.of.set(self.of.get() - 1);
            // One with bytes in it is nobody's.
            let ends = self.ends.take().filter(|_| self.within == 0);
            if pool.idle.len() < KEPT {
                pool.idle.extend(ends);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        let (one, two) = UnixStream::pair().expect("a pair of sockets");
        one.set_nonblocking(true).expect("is set");
        (one, two)
    }

    /// Bytes come out as they went in; nothing to take in is no end, and an end is one.
    #[test]
    fn through() {
        let ((from, mut writes), (to, mut reads)) = (pair(), pair());
        let mut pipe = take(&Rc::default()).expect("there is one");
        let nothing = pipe.fill(&from).expect_err("has nothing");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        writes.write_all(b"some bytes").expect("are taken");
        assert_eq!(pipe.fill(&from).expect("are there"), 10);
        while pipe.within > 0 {
            pipe.empty(&to).expect("are taken");
        }
        let mut got = [0; 10];
        reads.read_exact(&mut got).expect("are there");
        assert_eq!(&got, b"some bytes");
        drop(writes);
        assert_eq!(pipe.fill(&from).expect("is the end"), 0);
    }

    /// What somebody left in a pipe comes to nobody else, and there are never more than the most, nor for one more than
    /// its share.
    #[test]
    fn nobody_elses_bytes() {
        let (from, mut writes) = pair();
        writes.write_all(b"a secret").expect("are taken");
        let one = Rc::default();
        let mut left = take(&one).expect("there is one");
        left.fill(&from).expect("are there");
        drop(left);
        let mut all: Vec<_> = (0..MOST).map_while(|_| take(&one)).collect();
        assert_eq!(all.len(), MOST_EACH);
        all.extend((all.len()..MOST).map_while(|_| take(&Rc::default())));
        assert_eq!(all.len(), MOST);
        assert!(take(&Rc::default()).is_none());
        let (to, _reads) = pair();
        for pipe in &mut all {
            pipe.within = 1;
            let empty = pipe.empty(&to).expect_err("has nothing");
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        }
        drop(all);
        assert!(take(&one).is_some());
        assert_eq!(one.get(), 0);
    }
}
