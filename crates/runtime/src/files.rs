//! File operations: each in a child of its own inside the sandbox, with the caller's IDs, killable.

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::{self, DEFAULT_CREDIT, MAX_DATA};
use dsec_proto::keeper::{Call, Ended};
use dsec_proto::runtime::{FileRead, FileReport, FileWrite};
use dsec_session::plan::{self, FdIndex, FileOp};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::check;
use crate::connection::{Input, Stream};
use crate::exec::errors_of;
use crate::fault;
use crate::groups::Leaf;
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
/// Largest file that can be written: beyond it the disk limit would be in the way anyway.
const MAX_LENGTH: u64 = 1 << 44;

/// `file.read`.
pub async fn read(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileRead = frame::params(params)?;
        let operation = |output| FileOp::Read {
            path: asked.path.to_vec(),
            offset: asked.offset,
            limit: asked.limit,
            output,
        };
        let who = Who {
            sandbox_id: &asked.sandbox_id,
            path: &asked.path,
            user: &asked.user,
            cwd: asked.cwd.as_ref().map(|path| path.as_slice()),
        };
        let running = Running::begin(node, who, Side::Reads, operation).await?;
        Ok((
            running,
            asked
                .credit
                .get(&1)
                .copied()
                .unwrap_or(asked.offset.saturating_add(DEFAULT_CREDIT)),
            asked,
        ))
    };
    let result = match begun.await {
        Ok((running, until, asked)) => {
            let left = running.send(stream, asked.offset, until).await;
            if left.is_none() {
                running.abandon().await;
                return;
            }
            running.finish(&asked.path).await
        }
        Err(error) => Err(error),
    };
    stream.out.finish(result).await;
}

/// `file.write`.
pub async fn write(node: &Rc<Node>, params: &[u8], stream: &mut Stream) {
    let begun = async {
        let asked: FileWrite = frame::params(params)?;
        if asked.length > MAX_LENGTH || asked.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(
                WireError::invalid("length or mode is out of range").with("field", "length")
            );
        }
        let operation = |input| FileOp::Write {
            path: asked.path.to_vec(),
            mode: asked.mode,
            parents: asked.parents,
            length: asked.length,
            input,
        };
        let who = Who {
            sandbox_id: &asked.sandbox_id,
            path: &asked.path,
            user: &asked.user,
            cwd: asked.cwd.as_ref().map(|path| path.as_slice()),
        };
        Ok((
            Running::begin(node, who, Side::Writes, operation).await?,
            asked,
        ))
    };
    let result = match begun.await {
        Ok((mut running, asked)) => match running.receive(stream, asked.length).await {
            Some(Ok(())) => {
                fault!("runtime.write.received");
                running.finish(&asked.path).await
            }
            Some(Err(error)) => {
                running.abandon().await;
                Err(error)
            }
            None => return running.abandon().await,
        },
        Err(error) => Err(error),
    };
    stream.out.finish(result).await;
}

struct Who<'a> {
    sandbox_id: &'a str,
    path: &'a [u8],
    user: &'a str,
    cwd: Option<&'a [u8]>,
}

/// What the child does with its end of the pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// It reads the file and writes to the pipe.
    Reads,
    /// It reads from the pipe and writes the file.
    Writes,
}

/// A file operation under way.
struct Running {
    node: Rc<Node>,
    sandbox: Rc<Sandbox>,
    object_id: String,
    index: u16,
    leaf: Leaf,
    pipe: Option<AsyncFd<OwnedFd>>,
    ended: oneshot::Receiver<Ended>,
    _open: crate::sandbox::OpenStream,
}

impl Running {
    async fn begin(
        node: &Rc<Node>,
        who: Who<'_>,
        side: Side,
        operation: impl FnOnce(FdIndex) -> FileOp,
    ) -> WireResult<Self> {
        check::path("path", who.path, false)?;
        check::user(who.user)?;
        who.cwd
            .map_or(Ok(()), |path| check::path("cwd", path, true))?;
        let sandbox = node.live(who.sandbox_id)?;
        node.has_descriptors(4)?;
        pause::go_on(node, &sandbox, "file")?;
        let broken = |error: std::io::Error| WireError::node("file", error.to_string());
        let (reader, writer) = sys::pipe(0).map_err(broken)?;
        let (ours, theirs, interest) = match side {
            Side::Reads => (reader, writer, Interest::READABLE),
            Side::Writes => (writer, reader, Interest::WRITABLE),
        };
        sys::nonblocking(&ours).map_err(broken)?;
        let (index, leaf) = sandbox.take_leaf().map_err(broken)?;
        let number = node.next_file.replace(node.next_file.get() + 1);
        let object_id = format!("file/{}/{}-{number}", sandbox.id, sys::boottime());
        let (told, ended) = oneshot::channel();
        node.files.borrow_mut().insert(object_id.clone(), told);
        let pipe = Some(poll::watch(ours, interest).map_err(broken)?);
        let running = Self {
            node: Rc::clone(node),
            _open: sandbox.stream(),
            sandbox,
            object_id,
            index,
            leaf,
            pipe,
            ended,
        };
        match running.spawn(&who, theirs, operation).await {
            Ok(()) => {
                fault!("runtime.write.spawned");
                Ok(running)
            }
            Err(error) => {
                node.files.borrow_mut().remove(&running.object_id);
                running.sandbox.give_leaf(index);
                Err(error.about(who.sandbox_id))
            }
        }
    }

    async fn spawn(
        &self,
        who: &Who<'_>,
        theirs: OwnedFd,
        operation: impl FnOnce(FdIndex) -> FileOp,
    ) -> WireResult<()> {
        let mut parcel = Parcel::default();
        let entrant = Entrant {
            object_id: sandbox_object(&self.sandbox.id),
            entry: entry(&self.leaf, &mut parcel)
                .map_err(|error| WireError::node("file", error.to_string()))?,
            start: self.node.config.range(self.sandbox.tag.borrow().slot),
            user: who.user,
            cwd: who.cwd,
            create_cwd: false,
            owned: Vec::new(),
        };
        let operation = operation(parcel.give(theirs));
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
                &self.node.profile,
                &entrant,
                operation,
            ))),
            plan_fd: None,
            held: Vec::new(),
        };
        let spawned = self.node.keeper.call(call, parcel.numbers()).await;
        spawned.map(drop).map_err(|refusal| match &refusal.failure {
            Some(failure) if failure.step == "file" => file_error(failure.errno, who.path),
            _ => errors_of(&refusal),
        })
    }

    /// Sends what the child reads, within the credit. `None`: the client has left.
    async fn send(&self, stream: &mut Stream, first: u64, mut until: u64) -> Option<()> {
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
    async fn receive(&mut self, stream: &mut Stream, length: u64) -> Option<WireResult<()>> {
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

    async fn pass(&self, bytes: &[u8]) -> bool {
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

    /// Waits for the report.
    async fn finish(mut self, path: &[u8]) -> WireResult<FileReport> {
        let ended = (&mut self.ended).await;
        fault!("runtime.write.reported");
        let sandbox = Rc::clone(&self.sandbox);
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
        match report.errno {
            0 => Ok(FileReport {
                bytes: report.bytes,
                size: report.size,
                mode: report.mode,
            }),
            errno => Err(file_error(errno, path).about(&sandbox.id)),
        }
    }

    /// Nobody waits for it any more: without its pipe it puts away what it had begun and ends, or it is killed.
    async fn abandon(mut self) {
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
            self.sandbox.give_leaf(self.index);
        }
    }
}

fn file_error(errno: i32, path: &[u8]) -> WireError {
    let code = match errno {
        libc::ENOENT => "file_missing",
        libc::EISDIR => "file_is_directory",
        libc::ENOTDIR => "file_not_directory",
        libc::EACCES | libc::EPERM => "file_denied",
        _ => "file_error",
    };
    let path = String::from_utf8_lossy(path);
    let said = std::io::Error::from_raw_os_error(errno).to_string();
    let said = said.split(" (os error").next().unwrap_or_default();
    WireError::new(code, format!("{said}: {path:?}"))
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
