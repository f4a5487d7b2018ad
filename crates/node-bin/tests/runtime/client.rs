//! A blocking client of `runtime.sock`, one stream at a time.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dsec_proto::error::WireError;
use dsec_proto::frame;
use dsec_proto::runtime::{
    Empty, ExecAttach, ExecEnd, ExecKill, ExecSpec, ExecStart, FileRead, FileReport, FileWrite,
    ManySandboxes, Mode, OneSandbox, SandboxEnd, SandboxList, SandboxSpec, SandboxStarted,
    SandboxStop,
};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_bytes::ByteBuf;
use serde_json::Value;

/// What a server says.
#[derive(Debug)]
pub enum Said {
    Data {
        channel: u8,
        offset: u64,
        bytes: Vec<u8>,
    },
    Until(u64),
    End(Vec<u8>),
    Error(WireError),
    Item(Value),
}

/// All that came on a stream.
#[derive(Debug, Default)]
pub struct Heard {
    pub bytes: [Vec<u8>; 3],
    pub items: Vec<Value>,
}

impl Heard {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.bytes[1]).into_owned()
    }
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.bytes[2]).into_owned()
    }
}

pub struct Client {
    socket: UnixStream,
    stream: u32,
}

impl Client {
    pub fn dial(path: &Path) -> std::io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { socket, stream: 0 })
    }

    pub fn open<T: Serialize>(&mut self, method: &str, params: &T) {
        self.stream += 1;
        self.send(&frame::open(self.stream, method, params));
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("sent");
    }

    pub fn data(&mut self, offset: u64, bytes: &[u8]) {
        self.send(&frame::data(self.stream, 0, offset, bytes));
    }

    pub fn until(&mut self, channel: u8, offset: u64) {
        self.send(&frame::until(self.stream, channel, offset));
    }

    pub fn hear(&mut self) -> std::io::Result<Said> {
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut bytes)?;
        let mut rest = bytes.as_slice();
        rmp::decode::read_array_len(&mut rest).expect("an array");
        let stream: u32 = rmp::decode::read_int(&mut rest).expect("stream");
        assert_eq!(stream, self.stream);
        let kind: u8 = rmp::decode::read_int(&mut rest).expect("kind");
        Ok(match kind {
            1 => {
                let channel = rmp::decode::read_int(&mut rest).expect("channel");
                let offset = rmp::decode::read_int(&mut rest).expect("offset");
                rmp::decode::read_bin_len(&mut rest).expect("bytes");
                Said::Data {
                    channel,
                    offset,
                    bytes: rest.to_vec(),
                }
            }
            2 => {
                let _channel: u8 = rmp::decode::read_int(&mut rest).expect("channel");
                Said::Until(rmp::decode::read_int(&mut rest).expect("offset"))
            }
            3 => Said::End(rest.to_vec()),
            4 => Said::Error(rmp_serde::from_slice(rest).expect("an error")),
            6 => Said::Item(rmp_serde::from_slice(rest).expect("an item")),
            other => panic!("a frame of kind {other}"),
        })
    }

    /// Follows the stream to its end, granting credit, and feeding `stdin` as it is granted.
    pub fn follow<T: DeserializeOwned>(
        &mut self,
        stdin: Option<&[u8]>,
    ) -> (Result<T, WireError>, Heard) {
        let mut heard = Heard::default();
        let mut sent = 0;
        let mut closed = stdin.is_none();
        loop {
            match self.hear().expect("the runtime answers") {
                Said::Data {
                    channel,
                    offset,
                    bytes,
                } => {
                    let end = offset + bytes.len() as u64;
                    heard.bytes[usize::from(channel)].extend(bytes);
                    self.until(channel, end + (1 << 20));
                }
                Said::Until(granted) => {
                    let stdin = stdin.unwrap_or_default();
                    while !closed && sent < stdin.len() && (sent as u64) < granted {
                        let end = stdin.len().min(granted as usize).min(sent + 60_000);
                        self.data(sent as u64, &stdin[sent..end]);
                        sent = end;
                    }
                    if !closed && sent == stdin.len() {
                        closed = true;
                        self.data(sent as u64, b"");
                    }
                }
                Said::Item(item) => heard.items.push(item),
                Said::End(bytes) => {
                    let result = rmp_serde::from_slice(&bytes).expect("the result's type");
                    return (Ok(result), heard);
                }
                Said::Error(error) => return (Err(error), heard),
            }
        }
    }

    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<T, WireError> {
        self.open(method, params);
        self.follow(None).0
    }

    pub fn create(&mut self, spec: &SandboxSpec) -> Result<SandboxStarted, WireError> {
        self.call("sandbox.create", spec)
    }

    pub fn stop(&mut self, sandbox_id: &str) -> SandboxEnd {
        let stop = SandboxStop {
            sandbox_id: sandbox_id.into(),
            cause: "stopped".into(),
            actor: "test".into(),
            grace_ms: 0,
            keep_ms: None,
        };
        self.call("sandbox.stop", &stop).expect("stops")
    }

    pub fn forget(&mut self, sandbox_id: &str) {
        let ids = ManySandboxes {
            sandbox_ids: vec![sandbox_id.into()],
        };
        let _: Empty = self.call("sandbox.forget", &ids).expect("is forgotten");
    }

    pub fn list(&mut self) -> SandboxList {
        self.call("sandbox.list", &Empty {}).expect("lists")
    }

    pub fn usage(&mut self, sandbox_id: &str) -> dsec_proto::runtime::Usage {
        let one = OneSandbox {
            sandbox_id: sandbox_id.into(),
        };
        self.call("sandbox.usage", &one).expect("usage")
    }

    pub fn start(&mut self, spec: &ExecSpec, mode: Mode) {
        self.open("exec.start", &started(spec, mode));
    }

    pub fn exec(&mut self, spec: &ExecSpec) -> (Result<ExecEnd, WireError>, Heard) {
        self.start(spec, Mode::Collect);
        self.follow(None)
    }

    /// Runs a shell script as root and expects that it could be run.
    pub fn sh(&mut self, sandbox_id: &str, script: &str) -> (ExecEnd, Heard) {
        let (end, heard) = self.exec(&exec_spec(sandbox_id, &["sh", "-c", script]));
        (end.expect("runs"), heard)
    }

    pub fn attach(&mut self, spec: &ExecSpec, mode: Mode, from: u64) {
        let attach = ExecAttach {
            sandbox_id: spec.sandbox_id.clone(),
            exec_id: spec.exec_id.clone(),
            mode,
            offsets: BTreeMap::from([(1, from)]),
            credit: BTreeMap::new(),
            max_output_bytes: None,
            end: None,
            writer: 0,
        };
        self.open("exec.attach", &attach);
    }

    pub fn kill(
        &mut self,
        spec: &ExecSpec,
        signal: Option<i32>,
        grace_ms: u64,
    ) -> Result<Empty, WireError> {
        let kill = ExecKill {
            sandbox_id: spec.sandbox_id.clone(),
            exec_id: spec.exec_id.clone(),
            signal,
            grace_ms,
            cause: "cancelled".into(),
        };
        self.call("exec.kill", &kill)
    }

    pub fn read(
        &mut self,
        sandbox_id: &str,
        path: &str,
        user: &str,
    ) -> (Result<FileReport, WireError>, Heard) {
        let read = FileRead {
            sandbox_id: sandbox_id.into(),
            path: ByteBuf::from(path),
            user: user.into(),
            cwd: None,
            offset: 0,
            limit: None,
            credit: BTreeMap::new(),
        };
        self.open("file.read", &read);
        self.follow(None)
    }

    pub fn write(
        &mut self,
        sandbox_id: &str,
        path: &str,
        user: &str,
        bytes: &[u8],
    ) -> Result<FileReport, WireError> {
        let write = FileWrite {
            sandbox_id: sandbox_id.into(),
            path: ByteBuf::from(path),
            user: user.into(),
            cwd: None,
            mode: Some(0o640),
            parents: false,
            length: bytes.len() as u64,
        };
        self.open("file.write", &write);
        self.follow(Some(bytes)).0
    }
}

fn started(spec: &ExecSpec, mode: Mode) -> ExecStart {
    let spec = spec.clone();
    ExecStart {
        exec_id: spec.exec_id,
        sandbox_id: spec.sandbox_id,
        argv: spec.argv,
        programs: spec.programs,
        env: spec.env,
        cwd: spec.cwd,
        create_cwd: spec.create_cwd,
        user: spec.user,
        timeout_ms: spec.timeout_ms,
        grace_ms: spec.grace_ms,
        stdin: spec.stdin,
        backpressure: spec.backpressure,
        max_output_bytes: spec.max_output_bytes,
        is_main: spec.is_main,
        merge_stderr: spec.merge_stderr,
        pty: spec.pty,
        script: spec.script,
        mode,
        credit: BTreeMap::new(),
    }
}

/// An exec with an ID of its own.
pub fn exec_spec(sandbox_id: &str, argv: &[&str]) -> ExecSpec {
    ExecSpec {
        exec_id: unique(),
        sandbox_id: sandbox_id.into(),
        argv: argv.iter().map(|part| ByteBuf::from(*part)).collect(),
        programs: None,
        env: vec![ByteBuf::from("PATH=/bin")],
        cwd: None,
        create_cwd: false,
        user: String::new(),
        timeout_ms: None,
        grace_ms: 200,
        stdin: false,
        backpressure: false,
        max_output_bytes: 10 << 20,
        is_main: false,
        merge_stderr: false,
        pty: None,
        script: None,
    }
}

/// 26 base32 characters that nobody else has.
pub fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut text = vec![b'a'; 26];
    for place in text.iter_mut().rev() {
        *place = b"abcdefghijklmnopqrstuvwxyz234567"[(number % 32) as usize];
        number /= 32;
    }
    String::from_utf8_lossy(&text).into_owned()
}
