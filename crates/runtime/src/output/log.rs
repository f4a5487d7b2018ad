//! One stream of one exec.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use super::plan::{self, At, Piece};
use crate::kernel::sys;

/// Most segment files that are held open for writing.
const MAX_OPEN: usize = 512;
/// What is shorter is read and sent together with other frames; what is longer goes from its file into the socket.
const UNREAD: usize = 32 << 10;

thread_local! {
    /// Segment files that are open for writing, all logs together.
    static OPEN: Cell<usize> = const { Cell::new(0) };
}

/// An open segment; counted.
struct Open {
    start: u64,
    file: File,
}

impl Open {
    fn new(start: u64, file: File) -> Self {
        OPEN.set(OPEN.get() + 1);
        Self { start, file }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.set(OPEN.get() - 1);
    }
}

/// What a look at a pipe came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing there now.
    Empty,
    /// All writers are gone.
    End,
}

/// The segments of one stream. The files are the truth: no count is stored elsewhere.
pub struct Log {
    directory: PathBuf,
    channel: u8,
    pieces: RefCell<Vec<Piece>>,
    open: RefCell<Option<Open>>,
    /// The segment that was read last, for as long as bytes of it are on their way.
    reading: RefCell<(u64, Weak<File>)>,
}

impl Log {
    /// The stream as its files say; none is a stream that nothing was written to yet.
    #[must_use]
    pub fn find(directory: &Path, channel: u8) -> Self {
        Self {
            directory: directory.into(),
            channel,
            pieces: RefCell::new(kept(directory, channel)),
            open: RefCell::default(),
            reading: RefCell::default(),
        }
    }

    /// A stream that is new for certain.
    #[must_use]
    pub fn new(directory: &Path, channel: u8) -> Self {
        Self {
            directory: directory.into(),
            channel,
            pieces: RefCell::default(),
            open: RefCell::default(),
            reading: RefCell::default(),
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.pieces.borrow().last().map_or(0, Piece::end)
    }

    fn path(&self, start: u64) -> PathBuf {
        self.directory.join(format!("{}.{start}", self.channel))
    }

    /// Moves what a pipe has, at most `most` bytes, to the end of the stream.
    ///
    /// # Errors
    /// When the data directory cannot take it.
    pub fn pull(&self, pipe: &OwnedFd, most: usize) -> io::Result<Pull> {
        let mut waiting = 0i32;
        // SAFETY: FIONREAD writes one int. It is asked first so that an idle or ended pipe makes no file.
        let asked = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut waiting) };
        if asked == 0 && waiting == 0 {
            return Ok(Self::nothing(pipe));
        }
        let (start, room) = plan::room(&self.pieces.borrow());
        self.ready(start)?;
        let open = self.open.borrow();
        let Some(open) = open.as_ref() else {
            return Ok(Pull::Empty);
        };
        let mut offset = self.total() - start;
        let most = most.min(usize::try_from(room).unwrap_or(usize::MAX));
        match sys::splice_to_file(pipe, &open.file, &mut offset, most) {
            Ok(0) => Ok(Pull::End),
            Ok(moved) => {
                self.grown(start, moved as u64);
                Ok(Pull::Bytes(moved))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Pull::Empty),
            Err(error) => Err(error),
        }
    }

    fn nothing(pipe: &OwnedFd) -> Pull {
        let mut watched = libc::pollfd {
            fd: pipe.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&mut watched, 1, 0) };
        match watched.revents {
            seen if seen & libc::POLLIN != 0 => Pull::Bytes(0), // it came between the two looks: again
            seen if seen & libc::POLLHUP != 0 => Pull::End,
            _ => Pull::Empty,
        }
    }

    fn ready(&self, start: u64) -> io::Result<()> {
        if self
            .open
            .borrow()
            .as_ref()
            .is_some_and(|open| open.start == start)
        {
            return Ok(());
        }
        self.open.replace(None);
        let path = self.path(start);
        let open = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        };
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(&self.directory)?;
                open()?
            }
            other => other?,
        };
        self.open.replace(Some(Open::new(start, file)));
        Ok(())
    }

    fn grown(&self, start: u64, moved: u64) {
        let mut pieces = self.pieces.borrow_mut();
        match pieces.last_mut() {
            Some(last) if last.start == start => last.length += moved,
            _ => pieces.push(Piece {
                start,
                length: moved,
            }),
        }
        while let Some(index) = plan::surplus(&pieces) {
            let gone = pieces.remove(index);
            let _ = std::fs::remove_file(self.path(gone.start));
        }
    }

    /// Closes the segment that is being written when too many are open; the next byte opens it again.
    pub fn rest(&self) {
        if OPEN.get() > MAX_OPEN {
            self.close();
        }
    }

    /// Closes the segment that is being written.
    pub fn close(&self) {
        self.open.replace(None);
    }

    /// Where the gap at `offset` ends, if there is one.
    #[must_use]
    pub fn gap(&self, offset: u64) -> Option<u64> {
        match plan::at(&self.pieces.borrow(), offset) {
            At::Gap(to) => Some(to),
            At::Bytes(_) | At::End => None,
        }
    }

    /// Looks at the files again, after they were shrunk.
    pub fn reload(&self) {
        self.close();
        self.reading.take();
        *self.pieces.borrow_mut() = kept(&self.directory, self.channel);
    }

    /// Whether something of it is not kept any more.
    #[must_use]
    pub fn has_dropped(&self) -> bool {
        let pieces = self.pieces.borrow();
        let kept: u64 = pieces.iter().map(|piece| piece.length).sum();
        kept < pieces.last().map_or(0, Piece::end)
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.pieces.borrow().iter().map(|piece| piece.length).sum()
    }

    /// Up to `most` bytes from `offset`, not beyond `end`; or the end of the gap that is there; or nothing.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn read(&self, offset: u64, end: u64, most: usize) -> io::Result<Read> {
        match self.read_kept(offset, end, most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.reload();
                self.read_kept(offset, end, most)
            }
            read => read,
        }
    }

    fn read_kept(&self, offset: u64, end: u64, most: usize) -> io::Result<Read> {
        let found = plan::at(&self.pieces.borrow(), offset);
        match found {
            At::End => Ok(Read::Nothing),
            At::Gap(to) => Ok(Read::Gap(to.min(end))),
            At::Bytes(piece) => {
                let length = (piece.end().min(end).saturating_sub(offset) as usize).min(most);
                let start = offset - piece.start;
                if length == 0 {
                    return Ok(Read::Nothing);
                }
                if length >= UNREAD {
                    return Ok(Read::Part(Part {
                        file: self.segment(piece.start)?,
                        start,
                        length: length as u32,
                    }));
                }
                let mut bytes = vec![0; length];
                File::open(self.path(piece.start))?.read_exact_at(&mut bytes, start)?;
                Ok(Read::Bytes(bytes))
            }
        }
    }

    fn segment(&self, start: u64) -> io::Result<Rc<File>> {
        let mut reading = self.reading.borrow_mut();
        if let Some(file) = reading.1.upgrade().filter(|_| reading.0 == start) {
            return Ok(file);
        }
        let file = Rc::new(File::open(self.path(start))?);
        *reading = (start, Rc::downgrade(&file));
        Ok(file)
    }
}

/// A range of a segment. The file stays what it is, also when it has no name any more.
#[derive(Debug)]
pub struct Part {
    /// The segment.
    pub file: Rc<File>,
    /// Where in it.
    pub start: u64,
    /// How many bytes.
    pub length: u32,
}

/// What a reader gets.
#[derive(Debug)]
pub enum Read {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Many bytes, where they are.
    Part(Part),
    /// Nothing kept until this offset.
    Gap(u64),
    /// Not written yet.
    Nothing,
}

/// The files of a stream.
pub(super) fn kept(directory: &Path, channel: u8) -> Vec<Piece> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut pieces: Vec<Piece> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let start = name.strip_prefix(&format!("{channel}."))?.parse().ok()?;
            let length = entry.metadata().ok()?.len();
            (length > 0).then_some(Piece { start, length })
        })
        .collect();
    pieces.sort_by_key(|piece| piece.start);
    pieces
}

#[cfg(test)]
mod tests;
