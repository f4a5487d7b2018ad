//! What is kept of the output of an exec that is forgotten: gaps and exact bytes, within a reader's credit.

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::DEFAULT_CREDIT;
use dsec_proto::runtime::{Empty, Gap, OutputRead};

use crate::check;
use crate::connection::{Input, Out, Stream};
use crate::node::Node;
use crate::output::{Log, Read, FRAME};

/// One channel and how far its reader is.
struct Channel {
    number: u8,
    log: Log,
    at: u64,
    until: u64,
    end: u64,
}

/// `output.read`. `None`: the reader has left.
///
/// # Errors
/// `invalid_argument`, `protocol_error`, and `node_error` when a file cannot be read.
pub async fn read(
    node: &Node,
    asked: OutputRead,
    stream: &mut Stream,
) -> Option<WireResult<Empty>> {
    let mut channels = match channels(node, &asked) {
        Ok(channels) => channels,
        Err(error) => return Some(Err(error)),
    };
    loop {
        let mut sent = false;
        for channel in &mut channels {
            match channel.send(&stream.out).await {
                Ok(moved) => sent |= moved,
                Err(error) => return Some(Err(error)),
            }
        }
        if channels.iter().all(|channel| channel.at >= channel.end) {
            return Some(Ok(Empty {}));
        }
        if !sent {
            match stream.input.recv().await? {
                Input::Until {
                    channel: channel @ (1 | 2),
                    offset,
                } => channels[usize::from(channel) - 1].grant(offset),
                Input::Close => return None,
                _ => {
                    let text = "what is kept takes credit only";
                    return Some(Err(WireError::new("protocol_error", text)));
                }
            }
        }
    }
}

fn channels(node: &Node, asked: &OutputRead) -> WireResult<[Channel; 2]> {
    check::sandbox_id(&asked.sandbox_id)?;
    check::exec_id(&asked.exec_id)?;
    let output = node.config.output();
    let directory = output.join(&asked.sandbox_id).join(&asked.exec_id);
    Ok([1, 2].map(|number| {
        let log = Log::find(&directory, number);
        let at = asked.offsets.get(&number).copied().unwrap_or(0);
        let credit = asked.credit.get(&number).copied();
        Channel {
            number,
            at,
            until: credit.unwrap_or(at.saturating_add(DEFAULT_CREDIT)),
            end: asked.ends.get(&number).copied().unwrap_or(log.total()),
            log,
        }
    }))
}

impl Channel {
    fn grant(&mut self, offset: u64) {
        self.until = self.until.max(offset);
    }

    /// Sends one frame's worth, or tells of a gap. Whether there was anything to send.
    async fn send(&mut self, out: &Out) -> WireResult<bool> {
        let end = self.end.min(self.until);
        if self.at >= end {
            return Ok(false);
        }
        let read = self.log.read(self.at, end, FRAME);
        match read.map_err(|error| WireError::node("output", error.to_string()))? {
            Read::Bytes(bytes) => {
                out.data(self.number, self.at, &bytes).await;
                self.at += bytes.len() as u64;
            }
            Read::Part(part) => {
                let next = self.at + u64::from(part.length);
                out.part(self.number, self.at, part).await;
                self.at = next;
            }
            gap => {
                // Where the last byte that is kept stands before the end, the rest is a gap too.
                let to = match self.log.gap(self.at) {
                    Some(to) if !matches!(gap, Read::Nothing) => to.min(self.end),
                    _ => self.end,
                };
                let (gap, from) = (self.number, self.at);
                out.item(&Gap { gap, from, to }).await;
                self.until = self.until.saturating_add(to - from);
                self.at = to;
            }
        }
        Ok(true)
    }
}
