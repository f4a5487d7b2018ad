//! Transfers: archives in and out of a sandbox that outlive the connections they came by.
//!
//! Each is a task of its own that owns the child. Connections attach to it, the latest one counts. What a lost
//! connection had on its way is sent again: by the client up to what was confirmed, by us from what is held.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::{self, MAX_DATA};
use dsec_proto::runtime::{Empty, Transfer, TransferAt, TransferCancel, TransferEnd, TransferKind};
use dsec_session::plan::{self, FileOp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::running::{Running, Side};
use crate::connection::{Input, Stream};
use crate::node::Node;

/// Bytes that may be on their way: `until` is always what was taken plus this.
const WINDOW: u64 = 4 << 20;
/// How long a transfer waits for its client to come back.
const ALONE: Duration = Duration::from_secs(30);
/// How often it looks meanwhile whether there is still a sandbox.
const LOOK: Duration = Duration::from_millis(250);
/// Transfers that one sandbox may have at once.
const MAX_TRANSFERS: usize = 16;
/// Room in the pipe to the child.
const PIPE: i32 = 1 << 20;

/// What happens to a transfer.
pub enum Said {
    /// A connection, and where its client goes on.
    Attach(Stream, u64),
    /// It shall end; told when it has.
    Cancel(oneshot::Sender<()>),
}

/// `transfer.upload` and `transfer.download`: begin one, or attach to it.
pub async fn open(node: &Rc<Node>, kind: TransferKind, params: &[u8], stream: Stream) {
    let out = stream.out.clone();
    if let Err(error) = attach(node, kind, params, stream).await {
        out.finish::<Empty>(Err(error)).await;
    }
}

async fn attach(
    node: &Rc<Node>,
    kind: TransferKind,
    params: &[u8],
    stream: Stream,
) -> WireResult<()> {
    let asked: Transfer = frame::params(params)?;
    crate::check::exec_id(&asked.transfer_id)?;
    let key = (asked.sandbox_id.clone(), asked.transfer_id.clone());
    if let Some(known) = node.transfers.borrow().get(&key) {
        return known
            .send(Said::Attach(stream, asked.offset))
            .map_err(|_| unknown(&asked));
    }
    if asked.resume {
        return Err(unknown(&asked));
    }
    if node.transferring.get(&asked.sandbox_id) >= MAX_TRANSFERS {
        let message = format!("a sandbox has at most {MAX_TRANSFERS} transfers at once");
        return Err(WireError::new("capacity", message).about(&asked.sandbox_id));
    }
    // Known from here on, so that a client that comes back at once finds it.
    let (say, said) = mpsc::unbounded_channel();
    node.transfers.borrow_mut().insert(key.clone(), say);
    let counted = node.transferring.count(&asked.sandbox_id);
    let result = begin(node, kind, &asked).await;
    let node = Rc::clone(node);
    match result {
        Ok(running) => {
            tokio::task::spawn_local(async move {
                let mut task = Task {
                    said,
                    stream: Some((stream, asked.offset)),
                    cancelled: Vec::new(),
                };
                task.run(kind, running).await;
                node.transfers.borrow_mut().remove(&key);
                drop(counted);
                for told in task.cancelled {
                    let _ = told.send(());
                }
            });
            Ok(())
        }
        Err(error) => {
            node.transfers.borrow_mut().remove(&key);
            Err(error)
        }
    }
}

fn unknown(asked: &Transfer) -> WireError {
    WireError::not_found("this transfer is not known here any more")
        .in_phase("transfer")
        .about(&asked.sandbox_id)
}

async fn begin(node: &Rc<Node>, kind: TransferKind, asked: &Transfer) -> WireResult<Running> {
    let running = match kind {
        TransferKind::Upload => {
            let operation = |input| FileOp::Unpack {
                path: asked.path.to_vec(),
                parents: asked.parents,
                owners: asked.owners,
                input,
            };
            let running = Running::begin(node, asked, Side::Writes, operation).await?;
            fault!("runtime.upload.begun");
            running
        }
        TransferKind::Download => {
            let name = asked.name.clone().unwrap_or_else(|| b".".to_vec().into());
            if name.is_empty() || name.len() > 255 || name.contains(&b'/') || name.contains(&0) {
                return Err(WireError::invalid("name is no name").with("field", "name"));
            }
            let operation = |output| FileOp::Pack {
                path: asked.path.to_vec(),
                follow: asked.follow,
                name,
                output,
            };
            let running = Running::begin(node, asked, Side::Reads, operation).await?;
            fault!("runtime.download.begun");
            running
        }
    };
    running.widen(PIPE);
    Ok(running)
}

/// `transfer.cancel`: returns when nothing is left of it. An unknown one is over.
pub async fn cancel(node: &Rc<Node>, params: &[u8]) -> WireResult<Empty> {
    let asked: TransferCancel = frame::params(params)?;
    let known = node
        .transfers
        .borrow()
        .get(&(asked.sandbox_id, asked.transfer_id))
        .cloned();
    if let Some(known) = known {
        let (told, over) = oneshot::channel();
        if known.send(Said::Cancel(told)).is_ok() {
            let _ = over.await;
        }
    }
    Ok(Empty {})
}

/// Why a part of the work stopped.
enum Stopped {
    /// All bytes have passed.
    Done,
    /// The client is gone for good, or broke the protocol.
    Abandoned,
}

struct Task {
    said: mpsc::UnboundedReceiver<Said>,
    /// The connection, and the offset that its client named.
    stream: Option<(Stream, u64)>,
    cancelled: Vec<oneshot::Sender<()>>,
}

impl Task {
    async fn run(&mut self, kind: TransferKind, mut running: Running) {
        let stopped = match kind {
            TransferKind::Upload => self.upload(&mut running).await,
            TransferKind::Download => self.download(&running).await,
        };
        running.pipe = None;
        match stopped {
            Stopped::Abandoned => running.abandon().await,
            Stopped::Done => self.conclude(running).await,
        }
    }

    /// The next connection. `None`: none came in time, or the transfer is cancelled, or its sandbox has ended.
    async fn attached(&mut self, gone: impl Fn() -> bool) -> Option<(Stream, u64)> {
        let mut waited = Duration::ZERO;
        while self.stream.is_none() && waited < ALONE && !gone() {
            match timeout(LOOK, self.said.recv()).await {
                Ok(said) => {
                    if !self.heard(said) {
                        return None;
                    }
                }
                Err(_) => waited += LOOK,
            }
        }
        self.stream.take()
    }

    /// False: it is cancelled.
    fn heard(&mut self, said: Option<Said>) -> bool {
        match said {
            Some(Said::Attach(stream, offset)) => {
                self.stream = Some((stream, offset));
                true
            }
            Some(Said::Cancel(told)) => {
                self.cancelled.push(told);
                false
            }
            None => false,
        }
    }

    async fn upload(&mut self, running: &mut Running) -> Stopped {
        let mut at = 0;
        while let Some((mut stream, _)) = self.attached(|| running.sandbox.gone().is_some()).await {
            stream.out.item(&TransferAt { at }).await;
            let mut granted = at + WINDOW;
            stream.out.until(0, granted).await;
            loop {
                let input = tokio::select! {
                    said = self.said.recv() => if self.heard(said) { break } else { return Stopped::Abandoned },
                    input = stream.input.recv() => input,
                };
                match input {
                    None => break,
                    Some(Input::Close) => return Stopped::Abandoned,
                    Some(Input::Data {
                        channel: 0,
                        offset,
                        bytes,
                    }) => {
                        if offset != at || at + bytes.len() as u64 > granted {
                            let error = format!("the archive continues at {at}");
                            let error = WireError::new("protocol_error", error);
                            stream.out.finish::<Empty>(Err(error)).await;
                            return Stopped::Abandoned;
                        }
                        if bytes.is_empty() {
                            fault!("runtime.upload.whole");
                        }
                        if bytes.is_empty() || !running.pass(&bytes).await {
                            self.stream.get_or_insert((stream, at));
                            return Stopped::Done;
                        }
                        at += bytes.len() as u64;
                        fault!("runtime.upload.passed");
                        if at + WINDOW - granted >= WINDOW / 4 {
                            granted = at + WINDOW;
                            stream.out.until(0, granted).await;
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        Stopped::Abandoned
    }

    async fn download(&mut self, running: &Running) -> Stopped {
        let mut held = Held::default();
        while let Some((mut stream, mut sent)) =
            self.attached(|| running.sandbox.gone().is_some()).await
        {
            if !held.has(sent) {
                let error =
                    WireError::not_found(format!("what followed {sent} is not held any more"));
                let error = error.in_phase("transfer").about(&running.sandbox.id);
                stream.out.finish::<Empty>(Err(error)).await;
                return Stopped::Abandoned;
            }
            held.taken(sent);
            let mut until = sent + WINDOW;
            loop {
                while let Some(part) = held.from(sent).filter(|_| sent < until) {
                    let most = usize::try_from(until - sent).unwrap_or(part.len());
                    let part = &part[..part.len().min(most)];
                    stream.out.data(1, sent, part).await;
                    sent += part.len() as u64;
                }
                if held.whole && sent == held.end {
                    fault!("runtime.download.whole");
                    self.stream = Some((stream, sent));
                    return Stopped::Done;
                }
                let room = usize::try_from(until - sent).unwrap_or(0).min(MAX_DATA);
                tokio::select! {
                    read = running.read(room), if room > 0 && !held.whole => {
                        fault!("runtime.download.read");
                        held.add(read);
                    }
                    said = self.said.recv() => if self.heard(said) { break } else { return Stopped::Abandoned },
                    input = stream.input.recv() => match input {
                        None => break,
                        Some(Input::Close) => return Stopped::Abandoned,
                        Some(Input::Until { channel: 1, offset }) => {
                            let most = sent + WINDOW;
                            until = until.max(offset.min(most));
                            held.taken(offset.min(most).saturating_sub(WINDOW));
                        }
                        Some(_) => {}
                    },
                }
            }
        }
        Stopped::Abandoned
    }

    /// Wait for the child's report and tell it, again if need be, until the client has heard it.
    async fn conclude(&mut self, running: Running) {
        let finish = running.finish();
        tokio::pin!(finish);
        let result = loop {
            tokio::select! {
                result = &mut finish => break result,
                said = self.said.recv() => {
                    let _ = self.heard(said);
                }
            }
        };
        fault!("runtime.transfer.reported");
        let result = result.map(|report| ended(&report));
        if !self.cancelled.is_empty() {
            return;
        }
        while let Some((mut stream, at)) = self.attached(|| false).await {
            stream.out.item(&TransferAt { at }).await;
            stream.out.finish(result.clone()).await;
            fault!("runtime.transfer.told");
            loop {
                tokio::select! {
                    said = self.said.recv() => if self.heard(said) { break } else { return },
                    input = stream.input.recv() => match input {
                        None => break,
                        Some(Input::Close) => return,
                        Some(_) => {}
                    },
                }
            }
        }
    }
}

fn ended(report: &plan::FileReport) -> TransferEnd {
    TransferEnd {
        bytes: report.bytes,
        entries: report.entries,
        skipped: report.skipped,
    }
}

/// What was read of an archive and not yet taken by the client.
#[derive(Default)]
struct Held {
    parts: VecDeque<(u64, Vec<u8>)>,
    start: u64,
    end: u64,
    whole: bool,
}

impl Held {
    fn has(&self, offset: u64) -> bool {
        (self.start..=self.end).contains(&offset)
    }

    fn add(&mut self, read: Option<Vec<u8>>) {
        match read {
            Some(bytes) => {
                let at = self.end;
                self.end += bytes.len() as u64;
                self.parts.push_back((at, bytes));
            }
            None => self.whole = true,
        }
    }

    /// The client has everything before this offset.
    fn taken(&mut self, offset: u64) {
        while let Some((at, bytes)) = self.parts.front() {
            let next = at + bytes.len() as u64;
            if next > offset {
                break;
            }
            self.start = next;
            self.parts.pop_front();
        }
    }

    /// What follows an offset.
    fn from(&self, offset: u64) -> Option<&[u8]> {
        if offset >= self.end {
            return None;
        }
        let index = self
            .parts
            .partition_point(|(at, _)| *at <= offset)
            .checked_sub(1)?;
        let (at, bytes) = &self.parts[index];
        bytes.get(usize::try_from(offset - at).ok()?..)
    }
}

#[cfg(test)]
mod tests {
    use super::Held;

    /// What was taken is let go of in whole parts; the rest is given again from any offset.
    #[test]
    fn holds_what_was_not_taken() {
        let mut held = Held::default();
        held.add(Some(b"abc".to_vec()));
        held.add(Some(b"defg".to_vec()));
        assert_eq!(held.from(0), Some(&b"abc"[..]));
        assert_eq!(held.from(4), Some(&b"efg"[..]));
        assert_eq!(held.from(7), None);
        held.taken(4);
        assert!(!held.has(2) && held.has(3) && held.has(7) && !held.has(8));
        held.add(None);
        assert!(held.whole);
    }
}
