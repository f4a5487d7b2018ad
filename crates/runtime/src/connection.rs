//! One connection to `runtime.sock`: frames in, streams, frames out.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::frame::{self, Incoming, MAX_FRAME, MAX_OPEN};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::kernel::sys;
use crate::methods;
use crate::node::Node;
use crate::output::Part;

/// Frames that wait for a slow reader before their streams have to.
const QUEUED: usize = 64;
/// Frames are put together up to so many bytes for one write.
const GATHERED: usize = 64 << 10;
/// Room in the socket, so that a busy stream wakes its reader less often; the kernel's default is 208 KiB.
const ROOM: libc::c_int = 1 << 20;

/// Methods whose streams have a connection to themselves.
const SEALING: [&str; 3] = ["transfer.upload", "transfer.download", "exec.output"];

/// What a client says on an open stream.
#[derive(Debug)]
pub enum Input {
    /// Bytes; none end the channel.
    Data {
        /// Channel.
        channel: u8,
        /// Where they stand.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Credit.
    Until {
        /// Channel.
        channel: u8,
        /// Absolute.
        offset: u64,
    },
    /// The client wants no more, as opposed to a connection that broke. The input ends after it.
    Close,
}

/// One stream as its method sees it. The input ends when the client has closed it or is gone.
pub struct Stream {
    /// What the client says.
    pub input: mpsc::UnboundedReceiver<Input>,
    /// What it is told.
    pub out: Out,
}

/// The way back to a client. Nothing fails here: a client that is gone is not told, and its input ends.
#[derive(Clone)]
pub struct Out {
    stream: u32,
    frames: mpsc::Sender<Frame>,
}

/// A frame on its way, with its length before it.
struct Frame {
    /// Its bytes, or what stands before those of `part`.
    head: Vec<u8>,
    /// Bytes that go from a file into the socket, unread.
    part: Option<Part>,
}

impl Out {
    async fn send(&self, head: Vec<u8>) {
        let _ = self.frames.send(Frame { head, part: None }).await;
    }

    /// A message.
    pub async fn item<T: Serialize>(&self, object: &T) {
        self.send(frame::item(self.stream, object)).await;
    }

    /// Bytes, at most `MAX_DATA`.
    pub async fn data(&self, channel: u8, offset: u64, bytes: &[u8]) {
        self.send(frame::data(self.stream, channel, offset, bytes))
            .await;
    }

    /// Bytes of a file, at most `MAX_DATA`. It must not become shorter before they are sent.
    pub async fn part(&self, channel: u8, offset: u64, part: Part) {
        let head = frame::data_head(self.stream, channel, offset, part.length);
        let part = Some(part);
        let _ = self.frames.send(Frame { head, part }).await;
    }

    /// Credit.
    pub async fn until(&self, channel: u8, offset: u64) {
        self.send(frame::until(self.stream, channel, offset)).await;
    }

    /// The last word.
    pub async fn finish<T: Serialize>(&self, result: WireResult<T>) {
        let last = match result {
            Ok(result) => frame::end(self.stream, &result),
            Err(error) => frame::error(self.stream, &error),
        };
        self.send(last).await;
    }
}

/// Serves a connection until it ends.
pub async fn serve(node: Rc<Node>, socket: UnixStream) {
    sys::send_room(&socket, ROOM);
    let (reader, writer) = socket.into_split();
    let (frames, queue) = mpsc::channel(QUEUED);
    tokio::task::spawn_local(write(writer, queue));
    if let Err(error) = read(&node, reader, frames).await {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            tracing::warn!("connection closed: {error}");
        }
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Frame>) {
    while let Some(Frame { mut head, mut part }) = queue.recv().await {
        while part.is_none() && head.len() < GATHERED {
            let Ok(more) = queue.try_recv() else { break };
            head.extend(more.head);
            part = more.part;
        }
        if writer.write_all(&head).await.is_err() {
            return;
        }
        if let Some(part) = part {
            if let Err(error) = send_part(writer.as_ref(), part).await {
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    tracing::error!("a segment became shorter while it was sent");
                }
                return;
            }
        }
    }
}

async fn send_part(socket: &UnixStream, part: Part) -> io::Result<()> {
    let (mut at, end) = (part.start, part.start + u64::from(part.length));
    while at < end {
        socket.writable().await?;
        let left = (end - at) as usize;
        let send = || sys::send_file_at(socket, &*part.file, &mut at, left);
        match socket.try_io(Interest::WRITABLE, send) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn read(
    node: &Rc<Node>,
    reader: OwnedReadHalf,
    frames: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let mut streams = Streams {
        node,
        frames,
        open: HashMap::new(),
        parts: HashMap::new(),
        sweep_at: QUEUED,
        sealed: false,
    };
    let mut bytes = Vec::new();
    loop {
        let length = reader.read_u32().await? as usize;
        if length > MAX_FRAME {
            return Err(io::Error::other(format!(
                "a frame of {length} bytes is too long"
            )));
        }
        bytes.resize(length, 0);
        reader.read_exact(&mut bytes).await?;
        streams.take(&bytes)?;
    }
}

/// What a client has opened.
struct Streams<'a> {
    node: &'a Rc<Node>,
    frames: mpsc::Sender<Frame>,
    open: HashMap<u32, mpsc::UnboundedSender<Input>>,
    /// When so many are open, those that are over are dropped.
    sweep_at: usize,
    /// Opens that are longer than a frame, as far as they have come.
    parts: HashMap<u32, Vec<u8>>,
    /// The edge copies such a stream's frames unread: nothing else may be asked in its name.
    sealed: bool,
}

impl Streams<'_> {
    fn take(&mut self, frame: &[u8]) -> io::Result<()> {
        match decoded(frame)? {
            (stream, Incoming::Open { method, params }) => self.open(stream, method, params)?,
            (
                stream,
                Incoming::Data {
                    channel,
                    offset,
                    bytes,
                },
            ) => {
                let bytes = bytes.to_vec();
                self.pass(
                    stream,
                    Input::Data {
                        channel,
                        offset,
                        bytes,
                    },
                );
            }
            (stream, Incoming::Until { channel, offset }) => {
                self.pass(stream, Input::Until { channel, offset });
            }
            (stream, Incoming::Close) => {
                self.pass(stream, Input::Close);
                self.open.remove(&stream);
                self.parts.remove(&stream);
            }
            (stream, Incoming::Part { last, bytes }) => self.part(stream, last, bytes)?,
        }
        Ok(())
    }

    fn open(&mut self, stream: u32, method: &str, params: &[u8]) -> io::Result<()> {
        if self.sealed {
            return Err(io::Error::other("this stream has its connection to itself"));
        }
        self.sealed = SEALING.contains(&method);
        if self.open.len() >= self.sweep_at {
            self.open.retain(|_, input| !input.is_closed());
            self.sweep_at = QUEUED.max(2 * self.open.len());
        }
        let (input, receiver) = mpsc::unbounded_channel();
        if self.open.insert(stream, input).is_some() {
            return Err(io::Error::other(format!("stream {stream} is open already")));
        }
        let out = Out {
            stream,
            frames: self.frames.clone(),
        };
        let opened = Stream {
            input: receiver,
            out,
        };
        let (node, method) = (Rc::clone(self.node), method.to_owned());
        tokio::task::spawn_local(methods::call(node, method, params.to_vec(), opened));
        Ok(())
    }

    fn part(&mut self, stream: u32, last: bool, bytes: &[u8]) -> io::Result<()> {
        let so_far: usize = self.parts.values().map(Vec::len).sum();
        if so_far + bytes.len() > MAX_OPEN {
            return Err(io::Error::other("an open is too long"));
        }
        let whole = self.parts.entry(stream).or_default();
        whole.extend_from_slice(bytes);
        if !last {
            return Ok(());
        }
        let whole = self.parts.remove(&stream).unwrap_or_default();
        match decoded(&whole)? {
            (named, Incoming::Open { method, params }) if named == stream => {
                self.open(stream, method, params)
            }
            _ => Err(io::Error::other("parts that are no open")),
        }
    }

    /// Frames for a stream that is over cross its end on the way and mean nothing.
    fn pass(&self, stream: u32, input: Input) {
        if let Some(stream) = self.open.get(&stream) {
            let _ = stream.send(input);
        }
    }
}

fn decoded(frame: &[u8]) -> io::Result<(u32, Incoming<'_>)> {
    frame::decode(frame).map_err(|error| io::Error::other(error.message))
}

/// Refuses a method.
#[must_use]
pub fn unknown(method: &str) -> WireError {
    WireError::new(
        "unsupported",
        format!(
            "unknown method {:?}",
            method.chars().take(80).collect::<String>()
        ),
    )
}
