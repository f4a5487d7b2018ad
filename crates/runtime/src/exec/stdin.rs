//! Standard input: bytes from writers' frames into the pipe or the terminal, each once, whatever dies in between.
//!
//! What arrives is first stored at its offset in a buffer, sealed to nobody but the keeper, and goes from there into the pipe
//! by `sendfile`, which moves the buffer's own position in the same step. That position lives in the open file that the
//! keeper holds beside the pipe: a successor reads from it what the pipe has taken, to the byte.
//! The keeper holds both as an object of its own, so that closing it here and there really closes it. Of a terminal it has
//! the master already; the end of a writer's input is the terminal's end-of-file character, and others go on.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Call, Refusal};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use super::terminal::Terminal;
use super::writers::Writers;
use super::Exec;
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::tag::{stdin_object, Tag};

/// How far beyond what the program's pipe has taken a writer may send.
pub const CREDIT: u64 = 256 << 10;
/// What the pipe has taken is dropped from the buffer in steps of so many bytes.
const STEP: u64 = 256 << 10;

/// An exec's standard input.
pub struct Stdin {
    to: AsyncFd<OwnedFd>,
    is_terminal: bool,
    buffer: File,
    dropped: Cell<u64>,
    writers: Writers,
    writing: tokio::sync::Mutex<()>,
}

impl Stdin {
    /// A new one of a pipe, at offset 0.
    ///
    /// # Errors
    /// When there is no memory or descriptor for it.
    pub fn new(pipe: OwnedFd, directory: &Path) -> io::Result<Self> {
        Self::again(pipe, sys::memory("stdin")?, directory)
    }

    /// One that a former runtime had, with its buffer.
    ///
    /// # Errors
    /// When the pipe cannot be watched.
    pub fn again(pipe: OwnedFd, buffer: OwnedFd, directory: &Path) -> io::Result<Self> {
        Ok(Self {
            to: poll::watch(pipe, Interest::WRITABLE)?,
            is_terminal: false,
            buffer: buffer.into(),
            dropped: Cell::new(0),
            writers: Writers::find(directory),
            writing: tokio::sync::Mutex::new(()),
        })
    }

    /// That of a terminal, by its master; `buffer` when a former runtime had one.
    ///
    /// # Errors
    /// When there is no memory or descriptor for it.
    pub fn of_terminal(
        master: OwnedFd,
        buffer: Option<OwnedFd>,
        directory: &Path,
    ) -> io::Result<Self> {
        let buffer = buffer.map_or_else(|| sys::memory("stdin"), Ok)?;
        Ok(Self {
            is_terminal: true,
            ..Self::again(master, buffer, directory)?
        })
    }

    /// Bytes of a writer that the program's pipe has taken.
    #[must_use]
    pub fn taken(&self, writer: u64) -> u64 {
        self.writers.taken(writer, self.total())
    }

    /// Bytes of all writers that it has taken.
    fn total(&self) -> u64 {
        (&self.buffer).stream_position().unwrap_or(0)
    }

    /// Gives the keeper the buffer, behind a pipe's write end.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn hold(&self, node: &Node, exec: &Exec) -> Result<(), Refusal> {
        let object_id = stdin_object(&exec.sandbox.id, &exec.id);
        let tag = Tag::Stdin.encode().unwrap_or_default();
        let both = [self.to.get_ref().as_raw_fd(), self.buffer.as_raw_fd()];
        let fds = if self.is_terminal {
            &both[1..]
        } else {
            &both[..]
        };
        node.keeper
            .tell(
                Call::Put {
                    object_id,
                    tag,
                    held: (0..).take(fds.len()).collect(),
                },
                fds,
            )
            .await
    }

    /// Takes a writer's bytes that stand at `offset`; none end its input. What came before is skipped, so that a frame may
    /// be repeated. `true`: there is no more input, of anybody.
    ///
    /// # Errors
    /// `protocol_error` for a hole; `conflict` for one writer too many; `node_error` when there is no memory for the buffer.
    pub async fn write(&self, writer: u64, offset: u64, bytes: &[u8]) -> WireResult<bool> {
        let _one_at_a_time = self.writing.lock().await;
        let taken = self.taken(writer);
        if offset > taken {
            let text = format!("standard input continues at {taken}, not {offset}");
            return Err(WireError::new("protocol_error", text));
        }
        let known = usize::try_from(taken - offset).unwrap_or(usize::MAX);
        if bytes.is_empty() && !self.is_terminal {
            return Ok(true);
        }
        let ending;
        let bytes = if bytes.is_empty() {
            ending = self.end_of_file(known as u64);
            ending.as_slice()
        } else {
            bytes
        };
        self.writers.begin(writer, self.total())?;
        self.pass(bytes.get(known..).unwrap_or_default()).await?;
        Ok(false)
    }

    async fn pass(&self, bytes: &[u8]) -> WireResult<()> {
        let total = self.total();
        let end = total + bytes.len() as u64;
        self.buffer
            .write_all_at(bytes, total)
            .map_err(|error| WireError::node("stdin", error.to_string()))?;
        fault!("runtime.stdin.stored");
        while self.total() < end {
            let left = usize::try_from(end - self.total()).unwrap_or(usize::MAX);
            let passed = self
                .to
                .async_io(Interest::WRITABLE, |to| {
                    sys::send_file(to, &self.buffer, left)
                })
                .await;
            fault!("runtime.stdin.passed");
            // The program does not read any more; what it does not want is dropped, as a pipe's reader may.
            if !matches!(passed, Ok(1..)) {
                let _ = (&self.buffer).seek(SeekFrom::Start(end));
            }
        }
        self.drop_taken();
        Ok(())
    }

    /// The characters that end a writer's input, of which `sent` went before: in the middle of a line the first one only
    /// hands the line over.
    fn end_of_file(&self, sent: u64) -> Vec<u8> {
        let Ok(Some(character)) = Terminal::end_of_file(self.to.get_ref()) else {
            return Vec::new(); // hung up, or the program has no such character
        };
        let mut last = [b'\n'];
        if let Some(at) = self.total().checked_sub(sent + 1) {
            let _ = self.buffer.read_exact_at(&mut last, at);
        }
        let fresh = matches!(last[0], b'\n' | b'\r') || last[0] == character;
        vec![character; if fresh { 1 } else { 2 }]
    }

    /// Frees whole steps only, and the last byte never: pages that still wait in the pipe are whole pages, which the pipe
    /// keeps.
    fn drop_taken(&self) {
        let upto = self.total().saturating_sub(8) / STEP * STEP;
        if upto > self.dropped.get() {
            sys::punch(&self.buffer, self.dropped.get(), upto);
            self.dropped.set(upto);
        }
    }
}

/// Ends the standard input of an exec, here and at the keeper.
pub async fn close(node: &Node, exec: &Exec) {
    let open = exec.stdin.borrow_mut().take();
    if let Some(stdin) = open {
        drop(stdin.writing.lock().await);
        fault!("runtime.stdin.closing");
        node.keeper
            .ack(vec![stdin_object(&exec.sandbox.id, &exec.id)])
            .await;
        fault!("runtime.stdin.closed");
    }
}
