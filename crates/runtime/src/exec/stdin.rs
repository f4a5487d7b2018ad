//! Standard input: bytes from readers' frames into the pipe, at offsets that survive a restart.
//!
//! The keeper holds the write end as an object of its own, so that closing it here and there really closes it.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Call, Refusal};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use super::Exec;
use crate::kernel::poll;
use crate::node::Node;
use crate::tag::{stdin_object, Tag};

/// How far beyond what the program's pipe has taken a client may send.
pub const CREDIT: u64 = 256 << 10;

/// An exec's standard input.
pub struct Stdin {
    pipe: AsyncFd<OwnedFd>,
    /// Bytes that the pipe has taken; the file repeats it for a successor.
    taken: Cell<u64>,
    record: File,
    writing: tokio::sync::Mutex<()>,
}

impl Stdin {
    /// A new one, at offset 0.
    ///
    /// # Errors
    /// When its record cannot be made.
    pub fn new(pipe: OwnedFd, directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let record = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join("0"))?;
        let mut taken = [0; 8];
        let known = record.read_exact_at(&mut taken, 0).is_ok();
        let taken = Cell::new(if known { u64::from_le_bytes(taken) } else { 0 });
        let pipe = poll::watch(pipe, Interest::WRITABLE)?;
        Ok(Self {
            pipe,
            taken,
            record,
            writing: tokio::sync::Mutex::new(()),
        })
    }

    /// Bytes that the program's pipe has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Gives the keeper the write end.
    ///
    /// # Errors
    /// What the keeper refuses.
    pub async fn hold(&self, node: &Node, exec: &Exec) -> Result<(), Refusal> {
        let object_id = stdin_object(&exec.sandbox.id, &exec.id);
        let tag = Tag::Stdin.encode().unwrap_or_default();
        node.keeper
            .tell(
                Call::Put {
                    object_id,
                    tag,
                    held: vec![0],
                },
                &[self.pipe.get_ref().as_raw_fd()],
            )
            .await
    }

    /// Writes bytes that stand at `offset`. What came before is skipped, so that a frame may be repeated.
    ///
    /// # Errors
    /// `protocol_error` for a hole.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> WireResult<()> {
        let _one_at_a_time = self.writing.lock().await;
        let taken = self.taken.get();
        if offset > taken {
            let text = format!("standard input continues at {taken}, not {offset}");
            return Err(WireError::new("protocol_error", text));
        }
        let known = usize::try_from(taken - offset).unwrap_or(usize::MAX);
        let mut rest = bytes.get(known..).unwrap_or_default();
        while !rest.is_empty() {
            let written = self
                .pipe
                .async_io(Interest::WRITABLE, |pipe| write_now(pipe.as_raw_fd(), rest))
                .await;
            match written {
                Ok(count) => {
                    self.taken.set(self.taken.get() + count as u64);
                    let _ = self.record.write_all_at(&self.taken.get().to_le_bytes(), 0);
                    rest = &rest[count..];
                }
                // The program does not read any more; what it does not want is dropped, as a pipe's reader may.
                Err(_) => {
                    self.taken.set(self.taken.get() + rest.len() as u64);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn write_now(pipe: i32, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: a valid buffer and its length.
    let written = unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) };
    Ok(crate::kernel::sys::check(written as libc::c_long)? as usize)
}

/// Ends the standard input of an exec, here and at the keeper.
pub async fn close(node: &Node, exec: &Exec) {
    let open = exec.stdin.borrow_mut().take();
    if let Some(stdin) = open {
        drop(stdin.writing.lock().await);
        node.keeper
            .ack(vec![stdin_object(&exec.sandbox.id, &exec.id)])
            .await;
    }
}
