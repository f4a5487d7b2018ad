//! One file operation under way: a child inside the sandbox, its pipe, its end.

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::MAX_DATA;
use dsec_proto::keeper::{Call, Ended};
use dsec_session::plan::{self, FdIndex, FileOp};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::who::{Asked, Who};
use crate::check;
use crate::connection::{Input, Stream};
use crate::exec::errors_of;
use crate::groups::WarmLeaf;
use crate::keeper::Parcel;
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::pause;
use crate::plans::{self, Entrant};
use crate::sandbox::{create::entry, Sandbox};
use crate::tag::{sandbox_object, Tag};

/// How far ahead of the file a client may send.
const CREDIT: u64 = 1 << 20;
/// How long an operation that nobody waits for may take to put things away.
pub const LEAVE: Duration = Duration::from_secs(2);

/// What the child does with its end of the pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It has none: its report says all.
    Neither,
    /// It reads the file and writes to the pipe.
    Reads,
    /// It reads from the pipe and writes the file.
    Writes,
}

/// A file operation under way.
pub struct Running {
    node: Rc<Node>,
    /// Where.
    pub sandbox: Rc<Sandbox>,
    path: Vec<u8>,
    object_id: String,
    index: u16,
    leaf: Rc<WarmLeaf>,
    /// Our end, while it is open.
    pub pipe: Option<AsyncFd<OwnedFd>>,
    ended: oneshot::Receiver<Ended>,
    _open: crate::sandbox::OpenStream,
}

impl Running {
    /// Starts it; its file has been opened and checked when this returns.
    pub async fn begin(
        node: &Rc<Node>,
        asked: &impl Asked,
        side: Side,
        operation: impl FnOnce(FdIndex) -> FileOp,
    ) -> WireResult<Self> {
        let who = asked.who();
        check::path("path", who.path, false)?;
        check::user(who.user)?;
        who.cwd
            .map_or(Ok(()), |path| check::path("cwd", path, true))?;
        let sandbox = node.live(who.sandbox_id)?;
        node.has_descriptors(4)?;
        pause::go_on(node, &sandbox, "file")?;
        let broken = |error: std::io::Error| WireError::node("file", error.to_string());
        let (pipe, theirs) = piped(side).map_err(broken)?;
        let (index, leaf) = sandbox.take_leaf(&node.pool).map_err(broken)?;
        let number = node.next_file.replace(node.next_file.get() + 1);
        let object_id = format!("file/{}/{}-{number}", sandbox.id, sys::boottime());
        let (told, ended) = oneshot::channel();
        node.files.borrow_mut().insert(object_id.clone(), told);
        let running = Self {
            node: Rc::clone(node),
            _open: sandbox.stream(),
            sandbox,
            path: who.path.to_vec(),
            object_id,
            index,
            leaf,
            pipe,
            ended,
        };
        let spawned = running.spawn(&who, theirs, operation).await;
        node.warm.used(&running.leaf, node.descriptor_limit);
        match spawned {
            Ok(()) => {
                fault!("runtime.write.spawned");
                Ok(running)
            }
            Err(error) => {
                node.files.borrow_mut().remove(&running.object_id);
                running.sandbox.give_leaf(&node.pool, index);
                Err(error.about(who.sandbox_id))
            }
        }
    }

    async fn spawn(
        &self,
        who: &Who<'_>,
        theirs: Option<OwnedFd>,
        operation: impl FnOnce(FdIndex) -> FileOp,
    ) -> WireResult<()> {
        let mut parcel = Parcel::default();
        let files = self
            .leaf
            .entry()
            .map_err(|error| WireError::node("file", error.to_string()))?;
        let entrant = Entrant {
            object_id: sandbox_object(&self.sandbox.id),
            entry: entry(&files, &mut parcel),
            start: self.node.config.range(self.sandbox.tag.borrow().slot),
            user: who.user,
            cwd: who.cwd,
            create_cwd: false,
            processors: None,
            owned: Vec::new(),
        };
        let operation = operation(theirs.map_or(0, |theirs| parcel.give(theirs)));
        let tag = Tag::File {
            sandbox_id: self.sandbox.id.clone(),
            leaf: self.index,
        };
        let call = Call::Spawn {
            object_id: self.object_id.clone(),
            tag: tag
                .encode()
                .map_err(|error| WireError::node("tag", error))?,
            plan: Some(Box::new(plans::file(
                self.node.profiles.get(self.sandbox.tag.borrow().profile),
                &entrant,
                operation,
            ))),
            plan_fd: None,
            held: Vec::new(),
        };
        let spawned = self.node.keeper.call(call, parcel.numbers()).await;
        spawned.map(drop).map_err(|refusal| match &refusal.failure {
            Some(failure) if failure.step == "file" => file_error(failure.errno, who.path, None),
            _ => errors_of(&refusal),
        })
    }

    /// Sends what the child reads, within the credit. `None`: the client has left.
    pub async fn send(&self, stream: &mut Stream, first: u64, mut until: u64) -> Option<()> {
        let pipe = self.pipe.as_ref()?;
        let mut at = first;
        let mut buffer = vec![0; MAX_DATA];
        loop {
            while at >= until {
                if let Input::Until { channel: 1, offset } = stream.input.recv().await? {
                    until = until.max(offset);
                }
            }
            let most = usize::try_from(until - at)
                .unwrap_or(MAX_DATA)
                .min(MAX_DATA);
            tokio::select! {
                read = pipe.async_io(Interest::READABLE, |pipe| read_now(pipe.as_raw_fd(), &mut buffer[..most])) => match read {
                    Ok(0) | Err(_) => return Some(()),
                    Ok(count) => {
                        stream.out.data(1, at, &buffer[..count]).await;
                        at += count as u64;
                    }
                },
                input = stream.input.recv() => if let Input::Until { channel: 1, offset } = input? {
                    until = until.max(offset);
                },
            }
        }
    }

    /// Passes what the client sends to the child, until all is sent or the child has ended. `None`: the client has left.
    pub async fn receive(&mut self, stream: &mut Stream, length: u64) -> Option<WireResult<()>> {
        let mut at = 0;
        let mut granted = 0;
        while at < length {
            if at + CREDIT / 2 > granted {
                granted = at + CREDIT;
                stream.out.until(0, granted).await;
            }
            let Input::Data {
                channel: 0,
                offset,
                bytes,
            } = stream.input.recv().await?
            else {
                continue;
            };
            if offset != at || at + bytes.len() as u64 > granted.min(length) {
                return Some(Err(WireError::new(
                    "protocol_error",
                    format!("the file continues at {at}"),
                )));
            }
            if bytes.is_empty() {
                break; // cut short by the client: the child will say so
            }
            if !self.pass(&bytes).await {
                break; // the child does not read any more: its report says why
            }
            at += bytes.len() as u64;
        }
        self.pipe = None;
        Some(Ok(()))
    }

    /// More room in the pipe, so that two processes wait for each other less often. Without it all works too.
    pub fn widen(&self, bytes: i32) {
        if let Some(pipe) = &self.pipe {
            // SAFETY: numbers only.
            unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
        }
    }

    /// At most `most` bytes that the child has written; `None` when it writes no more.
    pub async fn read(&self, most: usize) -> Option<Vec<u8>> {
        let pipe = self.pipe.as_ref()?;
        let mut buffer = vec![0; most];
        let read = |pipe: &OwnedFd| read_now(pipe.as_raw_fd(), &mut buffer);
        match pipe.async_io(Interest::READABLE, read).await {
            Ok(0) | Err(_) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some(buffer)
            }
        }
    }

    /// Give the child all of it; false when it reads no more.
    pub async fn pass(&self, bytes: &[u8]) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut rest = bytes;
        while !rest.is_empty() {
            match pipe
                .async_io(Interest::WRITABLE, |pipe| write_now(pipe.as_raw_fd(), rest))
                .await
            {
                Ok(count) => rest = &rest[count..],
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits for the report; a failure of the operation is an error of the caller's.
    pub async fn finish(mut self) -> WireResult<plan::FileReport> {
        let ended = (&mut self.ended).await;
        fault!("runtime.write.reported");
        let sandbox = Rc::clone(&self.sandbox);
        let path = std::mem::take(&mut self.path);
        self.release().await;
        let report = ended.ok().and_then(|end| end.report);
        let Some(report) =
            report.and_then(|bytes| rmp_serde::from_slice::<plan::FileReport>(&bytes).ok())
        else {
            let cause = sandbox.gone();
            return Err(cause.map_or_else(
                || WireError::node("file", "the file operation was killed").about(&sandbox.id),
                |cause| WireError::gone(&sandbox.id, &cause),
            ));
        };
        if report.errno == 0 {
            return Ok(report);
        }
        let path = report.path.as_ref().map_or(path.as_slice(), |path| path);
        Err(file_error(report.errno, path, report.message.as_deref()).about(&sandbox.id))
    }

    /// Nobody waits for it any more: without its pipe it puts away what it had begun and ends, or it is killed.
    pub async fn abandon(mut self) {
        self.pipe = None;
        if timeout(LEAVE, &mut self.ended).await.is_err() {
            let _ = self.leaf.kill();
            let _ = (&mut self.ended).await;
        }
        self.release().await;
    }

    async fn release(self) {
        self.node.files.borrow_mut().remove(&self.object_id);
        self.node.keeper.ack(vec![self.object_id.clone()]).await;
        fault!("runtime.write.released");
        if self.sandbox.gone().is_none() {
            if !self.leaf.is_empty() {
                let _ = poll::until_empty(&self.leaf.v2).await;
            }
            self.sandbox.give_leaf(&self.node.pool, self.index);
        }
    }
}

fn file_error(errno: i32, path: &[u8], message: Option<&str>) -> WireError {
    let code = match errno {
        libc::ENOENT => "file_missing",
        libc::EEXIST => "file_exists",
        libc::EISDIR => "file_is_directory",
        libc::ENOTDIR => "file_not_directory",
        libc::EACCES | libc::EPERM => "file_denied",
        _ => "file_error",
    };
    let path = String::from_utf8_lossy(path);
    let said = std::io::Error::from_raw_os_error(errno).to_string();
    let said = said.split(" (os error").next().unwrap_or_default();
    let more = message.map_or_else(String::new, |more| format!(" ({more})"));
    WireError::new(code, format!("{said}: {path:?}{more}"))
        .with("errno", errno)
        .with("path", path.into_owned())
}

fn read_now(pipe: i32, buffer: &mut [u8]) -> std::io::Result<usize> {
    // SAFETY: a valid buffer and its length.
    let count = unsafe { libc::read(pipe, buffer.as_mut_ptr().cast(), buffer.len()) };
    Ok(sys::check(count as libc::c_long)? as usize)
}

fn write_now(pipe: i32, bytes: &[u8]) -> std::io::Result<usize> {
    // SAFETY: a valid buffer and its length.
    let count = unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) };
    Ok(sys::check(count as libc::c_long)? as usize)
}

type Ends = (Option<AsyncFd<OwnedFd>>, Option<OwnedFd>);

/// Our end of a pipe, not blocking, and the child's.
fn piped(side: Side) -> std::io::Result<Ends> {
    if side == Side::Neither {
        return Ok((None, None));
    }
    let (reader, writer) = sys::pipe(0)?;
    let (ours, theirs, interest) = match side {
        Side::Writes => (writer, reader, Interest::WRITABLE),
        _ => (reader, writer, Interest::READABLE),
    };
    sys::nonblocking(&ours)?;
    Ok((Some(poll::watch(ours, interest)?), Some(theirs)))
}
