//! An exec's terminal: its output through a pipe into the stream, its size, its end of file.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::runtime::{ExecResize, PtySize};

use super::{Exec, Stdin, Stream};
use crate::check;
use crate::kernel::sys;
use crate::node::Node;
use crate::output::Pull;

/// Most bytes that are on their way through the pipe.
const AT_ONCE: usize = 32 << 10;

/// The end of a terminal that the platform has.
pub struct Terminal {
    /// The master.
    pub master: OwnedFd,
    /// Write end of the pipe between it and the stream.
    relay: Rc<OwnedFd>,
}

impl Terminal {
    /// Moves what the program has written into its stream. `End`: nobody has the terminal open.
    ///
    /// # Errors
    /// When the output cannot be kept.
    pub fn pull(&self, stream: &Stream) -> io::Result<Pull> {
        let Some(pipe) = stream.pipe.borrow().clone() else {
            return Ok(Pull::End);
        };
        // What a former runtime had taken from the terminal comes first.
        if let Pull::Bytes(moved) = stream.log.pull(&pipe, AT_ONCE)? {
            return Ok(Pull::Bytes(moved));
        }
        match sys::splice_to_pipe(&self.master, self.relay.as_ref(), AT_ONCE) {
            Ok(0) => Ok(Pull::End),
            Ok(moved) => stream.log.pull(&pipe, moved),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Pull::End),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Pull::Empty),
            Err(error) => Err(error),
        }
    }

    /// The character that ends the input, as the terminal is set now; `None` when the program has switched it off.
    ///
    /// # Errors
    /// The errno.
    pub fn end_of_file(master: &impl AsRawFd) -> io::Result<Option<u8>> {
        // SAFETY: plain data, all zero is a valid value of it.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: a borrowed descriptor and a valid place for the result.
        let asked = unsafe { libc::tcgetattr(master.as_raw_fd(), &mut modes) };
        sys::check(libc::c_long::from(asked))?;
        let character = modes.c_cc[libc::VEOF];
        Ok(Some(character).filter(|character| *character != libc::_POSIX_VDISABLE))
    }

    fn resize(&self, size: PtySize) -> io::Result<()> {
        let size = libc::winsize {
            ws_row: size.rows,
            ws_col: size.cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: a borrowed descriptor and a valid structure, which the kernel copies.
        let set = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        sys::check(libc::c_long::from(set)).map(drop)
    }
}

/// Gives an exec the master of the terminal that its child has opened, and the buffer of its input if there is one.
///
/// # Errors
/// When its input cannot be set up.
pub async fn adopt(
    node: &Node,
    exec: &Exec,
    master: OwnedFd,
    buffer: Option<OwnedFd>,
) -> io::Result<()> {
    let record = node.config.output().join(&exec.sandbox.id).join(&exec.id);
    let is_new = buffer.is_none();
    let stdin = Rc::new(Stdin::of_terminal(master.try_clone()?, buffer, &record)?);
    if is_new {
        let held = stdin.hold(node, exec).await;
        held.map_err(|refusal| io::Error::other(refusal.message))?;
    }
    exec.stdin.replace(Some(stdin));
    if let Some(relay) = exec.relay.borrow_mut().take() {
        exec.terminal
            .replace(Some(Rc::new(Terminal { master, relay })));
    }
    Ok(())
}

/// `exec.resize`. The kernel tells the programs in front.
///
/// # Errors
/// `invalid_argument` for an exec without a terminal, `not_found`.
pub async fn resize(node: &Node, request: ExecResize) -> WireResult<()> {
    check::sandbox_id(&request.sandbox_id)?;
    check::exec_id(&request.exec_id)?;
    check::pty_size(request.size)?;
    let exec = node.exec(&request.sandbox_id, &request.exec_id)?;
    if !exec.tag.borrow().terminal {
        return Err(WireError::invalid("this exec has no terminal").with("field", "pty"));
    }
    exec.until(|exec| (!exec.is_starting()).then_some(())).await;
    let terminal = exec.terminal.borrow().clone();
    let resized = terminal.map_or(Ok(()), |terminal| terminal.resize(request.size));
    resized.map_err(|error| WireError::node("resize", error.to_string()))
}
