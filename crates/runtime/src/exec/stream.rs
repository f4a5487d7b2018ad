//! An exec's output to one reader, live or after the end.

use std::rc::Rc;
use std::time::Duration;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::DEFAULT_CREDIT;
use dsec_proto::runtime::{Empty, ExecEnd, Gap, Mode, Offsets, Started};

use super::stdin::{self, CREDIT};
use super::{Exec, Phase};
use crate::connection::{Input, Out, Stream};
use crate::kernel::sys;
use crate::node::Node;
use crate::output::{self, Log, Read};

/// How long the news that a program has begun may wait for its end.
const TOGETHER: Duration = Duration::from_millis(30);

/// How a reader wants the output.
pub struct Wanted {
    /// When and how much.
    pub mode: Mode,
    /// Where to begin, by channel.
    pub offsets: Offsets,
    /// First credit, by channel.
    pub credit: Offsets,
    /// For `collect`.
    pub max_output_bytes: u64,
    /// Whose standard input comes on the stream; `None`: it takes none.
    pub writer: Option<u64>,
}

/// The end of an exec, when there is one: its facts or its failure, and the totals up to which its output counts.
fn outcome(exec: &Exec) -> Option<(WireResult<ExecEnd>, [u64; 2])> {
    let totals = || [exec.streams[0].log.total(), exec.streams[1].log.total()];
    match &*exec.phase.borrow() {
        Phase::Ended(end) => Some((Ok(end.clone()), [end.stdout_total, end.stderr_total])),
        Phase::Failed(error) => Some((Err(error.clone()), totals())),
        Phase::Starting | Phase::Running | Phase::Ending => None,
    }
}

/// Serves one reader to the end of the exec, or until the reader leaves.
pub async fn collect_or_stream(
    node: &Rc<Node>,
    exec: &Rc<Exec>,
    wanted: Wanted,
    stream: &mut Stream,
) {
    let _open = exec.sandbox.stream();
    let started = Started {
        started_at: sys::unix_time(exec.started_ns.get()),
    };
    if wanted.mode == Mode::Detach {
        return stream.out.finish(Ok(started)).await;
    }
    let mut reader = Reader::new(node, exec, &wanted, stream.out.clone());
    let quiet = waits_for_the_end(exec, &wanted);
    if !quiet {
        stream.out.item(&started).await;
    }
    let ended = match wanted.mode {
        Mode::Collect => reader.wait(stream, quiet.then_some(&started)).await,
        _ => reader.live(stream).await,
    };
    let outcome = match ended {
        Some(Ok((outcome, totals))) => {
            if wanted.mode == Mode::Collect {
                reader
                    .collect(totals, wanted.max_output_bytes)
                    .await
                    .and(outcome)
            } else {
                outcome
            }
        }
        Some(Err(error)) => Err(error),
        None => return, // the reader has left
    };
    stream.out.finish(outcome).await;
}

/// Serves one reader with output alone; how the exec ended is told elsewhere, by those who record it.
pub async fn output_only(node: &Rc<Node>, exec: &Rc<Exec>, wanted: &Wanted, stream: &mut Stream) {
    let _open = exec.sandbox.stream();
    let mut reader = Reader::new(node, exec, wanted, stream.out.clone());
    match reader.live(stream).await {
        Some(Ok(_)) => stream.out.finish(Ok(Empty {})).await,
        Some(Err(error)) => stream.out.finish::<Empty>(Err(error)).await,
        None => {} // the reader has left
    }
}

/// Whether the reader wants the end, and nothing before: it has given all credit at once, and there is nothing to send.
fn waits_for_the_end(exec: &Exec, wanted: &Wanted) -> bool {
    let all = [1, 2].map(|channel| wanted.credit.get(&channel).is_some_and(|most| *most > 0));
    wanted.mode == Mode::Collect && all == [true; 2] && exec.stdin.borrow().is_none()
}

type Outcome = (WireResult<ExecEnd>, [u64; 2]);

struct Reader<'a> {
    node: &'a Rc<Node>,
    exec: &'a Rc<Exec>,
    out: Out,
    at: [u64; 2],
    until: [u64; 2],
    granted: u64,
    writer: Option<u64>,
}

impl<'a> Reader<'a> {
    fn new(node: &'a Rc<Node>, exec: &'a Rc<Exec>, wanted: &Wanted, out: Out) -> Self {
        let at = [1, 2].map(|channel| wanted.offsets.get(&channel).copied().unwrap_or(0));
        let until = [0, 1].map(|index| {
            let asked = wanted.credit.get(&(index as u8 + 1)).copied();
            asked.unwrap_or(at[index].saturating_add(DEFAULT_CREDIT))
        });
        Self {
            node,
            exec,
            out,
            at,
            until,
            granted: 0,
            writer: wanted.writer,
        }
    }

    /// Lets the client send more standard input, when there is room for a good deal.
    async fn grant(&mut self) {
        let stdin = self.exec.stdin.borrow().clone();
        if let (Some(stdin), Some(writer)) = (stdin, self.writer) {
            let next = stdin.taken(writer) + CREDIT;
            if next >= self.granted + CREDIT / 4 {
                self.granted = next;
                self.out.until(0, next).await;
            }
        }
    }

    /// Takes what the client says.
    async fn take(&mut self, input: Input) -> WireResult<()> {
        match input {
            Input::Until {
                channel: channel @ (1 | 2),
                offset,
            } => {
                let until = &mut self.until[usize::from(channel) - 1];
                *until = offset.max(*until);
                Ok(())
            }
            Input::Data {
                channel: 0,
                offset,
                bytes,
            } if self.writer.is_some() => self.feed(offset, bytes).await,
            Input::Close => Ok(()), // the input ends with it
            Input::Until { channel, .. } | Input::Data { channel, .. } => Err(WireError::new(
                "protocol_error",
                format!("channel {channel} is not for that"),
            )),
        }
    }

    async fn feed(&mut self, offset: u64, bytes: Vec<u8>) -> WireResult<()> {
        let Some(stdin) = self.exec.stdin.borrow().clone() else {
            return if self.exec.tag.borrow().stdin {
                Ok(()) // it was closed; a repeated frame means nothing
            } else {
                Err(WireError::invalid("this exec has no standard input").with("field", "stdin"))
            };
        };
        if offset + bytes.len() as u64 > self.granted {
            return Err(WireError::new(
                "protocol_error",
                "more standard input than was granted",
            ));
        }
        let writer = self.writer.unwrap_or_default();
        // A program that does not read must not hold up its own output: the write goes on beside it. Writes are taken in
        // order by the lock inside.
        let (node, exec) = (Rc::clone(self.node), Rc::clone(self.exec));
        let write = async move {
            let over = stdin.write(writer, offset, &bytes).await?;
            drop(stdin);
            if over {
                stdin::close(&node, &exec).await;
            }
            exec.changed.notify_waiters();
            Ok::<(), WireError>(())
        };
        tokio::task::spawn_local(async move {
            if let Err(error) = write.await {
                tracing::warn!("standard input: {}", error.message);
            }
        });
        Ok(())
    }

    /// Waits for the end. `None`: the reader has left.
    async fn wait(
        &mut self,
        stream: &mut Stream,
        mut begun: Option<&Started>,
    ) -> Option<WireResult<Outcome>> {
        let mut late = std::pin::pin!(tokio::time::sleep(TOGETHER));
        loop {
            let mut told = std::pin::pin!(self.exec.changed.notified());
            told.as_mut().enable();
            self.grant().await;
            if let Some(outcome) = outcome(self.exec) {
                return Some(Ok(outcome));
            }
            tokio::select! {
                () = told => {}
                input = stream.input.recv() => if let Err(error) = self.take(input?).await { return Some(Err(error)) },
                () = &mut late, if begun.is_some() => if let Some(started) = begun.take() { self.out.item(started).await },
            }
        }
    }

    /// Sends as it comes, within the credit. `None`: the reader has left.
    async fn live(&mut self, stream: &mut Stream) -> Option<WireResult<Outcome>> {
        loop {
            let mut told = std::pin::pin!(self.exec.changed.notified());
            told.as_mut().enable();
            self.grant().await;
            let outcome = outcome(self.exec);
            let ends = outcome
                .as_ref()
                .map_or([u64::MAX; 2], |(_, totals)| *totals);
            match self.send_some(ends).await {
                Ok(true) => {
                    while let Ok(input) = stream.input.try_recv() {
                        if let Err(error) = self.take(input).await {
                            return Some(Err(error));
                        }
                    }
                    if stream.input.is_closed() && stream.input.is_empty() {
                        return None;
                    }
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(false) => {}
                Err(error) => return Some(Err(error)),
            }
            if let Some(outcome) =
                outcome.filter(|_| self.at[0] >= ends[0] && self.at[1] >= ends[1])
            {
                return Some(Ok(outcome));
            }
            tokio::select! {
                () = told => {}
                input = stream.input.recv() => if let Err(error) = self.take(input?).await { return Some(Err(error)) },
            }
        }
    }

    async fn send_some(&mut self, ends: [u64; 2]) -> WireResult<bool> {
        let mut sent = false;
        for (index, end) in ends.into_iter().enumerate() {
            let at = self.at[index];
            if at < end.min(self.until[index]) {
                let next = match self.gap(index, at, end).await {
                    Some(to) => {
                        // Bytes that are not sent need no credit: it moves along.
                        self.until[index] = self.until[index].saturating_add(to - at);
                        to
                    }
                    None => self.send(index, at, end.min(self.until[index])).await?,
                };
                sent |= next > at;
                self.at[index] = next;
                let taken = &self.exec.streams[index].taken;
                if next > taken.get() {
                    taken.set(next);
                    if self.exec.tag.borrow().backpressure {
                        self.exec.changed.notify_waiters();
                    }
                }
            }
        }
        Ok(sent)
    }

    /// Tells of a gap that is at `at`. Returns its end.
    async fn gap(&self, index: usize, at: u64, end: u64) -> Option<u64> {
        let channel = index as u8 + 1;
        let to = self.exec.streams[index].log.gap(at).map(|to| to.min(end));
        if let Some(to) = to {
            self.out
                .item(&Gap {
                    gap: channel,
                    from: at,
                    to,
                })
                .await;
        }
        to
    }

    async fn send(&self, index: usize, at: u64, end: u64) -> WireResult<u64> {
        let log = &self.exec.streams[index].log;
        send(log, &self.out, index, at, end).await
    }

    async fn collect(&self, totals: [u64; 2], most: u64) -> WireResult<()> {
        let logs = [&self.exec.streams[0].log, &self.exec.streams[1].log];
        send_range(logs, [0, 0], totals, most, &self.out).await
    }
}

/// Sends `totals` bytes of both streams that begin at `from`: head and tail halves of `most`.
///
/// # Errors
/// When what is kept cannot be read.
pub async fn send_range(
    logs: [&Log; 2],
    from: [u64; 2],
    totals: [u64; 2],
    most: u64,
    out: &Out,
) -> WireResult<()> {
    for (index, total) in totals.into_iter().enumerate() {
        for (first, end) in output::halves(total, most) {
            let (mut at, to) = (from[index] + first, from[index] + end);
            while at < to {
                let next = send(logs[index], out, index, at, to).await?;
                if next == at {
                    return Err(WireError::node(
                        "output",
                        "a segment is shorter than it was",
                    ));
                }
                at = next;
            }
        }
    }
    Ok(())
}

/// Sends one frame's worth from `at`, or tells of a gap. Returns where the next one begins.
async fn send(log: &Log, out: &Out, index: usize, at: u64, end: u64) -> WireResult<u64> {
    let channel = index as u8 + 1;
    let read = log.read(at, end, output::FRAME);
    match read.map_err(|error| WireError::node("output", error.to_string()))? {
        Read::Nothing => Ok(at),
        Read::Gap(to) => {
            out.item(&Gap {
                gap: channel,
                from: at,
                to,
            })
            .await;
            Ok(to)
        }
        Read::Bytes(bytes) => {
            out.data(channel, at, &bytes).await;
            Ok(at + bytes.len() as u64)
        }
        Read::Part(part) => {
            let next = at + u64::from(part.length);
            out.part(channel, at, part).await;
            Ok(next)
        }
    }
}
