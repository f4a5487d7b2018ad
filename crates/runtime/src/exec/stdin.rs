//! Standard input: bytes from readers' frames into the pipe, each once, whatever dies in between.
//!
//! What arrives is first stored at its offset in a buffer, sealed to nobody but the keeper, and goes from there into the pipe
//! by `sendfile`, which moves the buffer's own position in the same step. That position lives in the open file that the
//! keeper holds beside the pipe: a successor reads from it what the pipe has taken, to the byte.
//! The keeper holds both as an object of its own, so that closing it here and there really closes it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Call, Refusal};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use super::Exec;
use crate::fault;
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::tag::{stdin_object, Tag};

/// How far beyond what the program's pipe has taken a client may send.
pub const CREDIT: u64 = 256 << 10;
/// What the pipe has taken is dropped from the buffer in steps of so many bytes.
const STEP: u64 = 256 << 10;

/// An exec's standard input.
pub struct Stdin {
    pipe: AsyncFd<OwnedFd>,
    buffer: File,
    dropped: Cell<u64>,
    writing: tokio::sync::Mutex<()>,
}

impl Stdin {
    /// A new one, at offset 0.
    ///
    /// # Errors
    /// When there is no memory or descriptor for it.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        Self::again(pipe, sys::memory("stdin")?)
    }

    /// One that a former runtime had, with its buffer.
    ///
    /// # Errors
    /// When the pipe cannot be watched.
    pub fn again(pipe: OwnedFd, buffer: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            pipe: poll::watch(pipe, Interest::WRITABLE)?,
            buffer: buffer.into(),
            dropped: Cell::new(0),
            writing: tokio::sync::Mutex::new(()),
        })
    }

    /// Bytes that the program's pipe has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        (&self.buffer).stream_position().unwrap_or(0)
    }

    /// Gives the keeper the write end and the buffer.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn hold(&self, node: &Node, exec: &Exec) -> Result<(), Refusal> {
        let object_id = stdin_object(&exec.sandbox.id, &exec.id);
        let tag = Tag::Stdin.encode().unwrap_or_default();
        let held = [self.pipe.get_ref().as_raw_fd(), self.buffer.as_raw_fd()];
        node.keeper
            .tell(
                Call::Put {
                    object_id,
                    tag,
                    held: vec![0, 1],
                },
                &held,
            )
            .await
    }

    /// Writes bytes that stand at `offset`. What came before is skipped, so that a frame may be repeated.
    ///
    /// # Errors
    /// `protocol_error` for a hole; `node_error` when there is no memory for the buffer.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> WireResult<()> {
        let _one_at_a_time = self.writing.lock().await;
        let taken = self.taken();
        if offset > taken {
            let text = format!("standard input continues at {taken}, not {offset}");
            return Err(WireError::new("protocol_error", text));
        }
        let known = usize::try_from(taken - offset).unwrap_or(usize::MAX);
        let rest = bytes.get(known..).unwrap_or_default();
        let end = taken + rest.len() as u64;
        self.buffer
            .write_all_at(rest, taken)
            .map_err(|error| WireError::node("stdin", error.to_string()))?;
        fault!("runtime.stdin.stored");
        while self.taken() < end {
            let left = usize::try_from(end - self.taken()).unwrap_or(usize::MAX);
            let passed = self
                .pipe
                .async_io(Interest::WRITABLE, |pipe| {
                    sys::send_file(pipe, &self.buffer, left)
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

    /// Frees whole steps only: pages that still wait in the pipe are whole pages, which the pipe keeps.
    fn drop_taken(&self) {
        let upto = self.taken() / STEP * STEP;
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
