//! A keeper in a directory of its own, ended with the test.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use serde_json::{json, Value};

use super::client::Client;

pub const KEEPER: &str = env!("CARGO_BIN_EXE_dsec-keeper");
pub const INIT: &str = env!("CARGO_BIN_EXE_dsec-init");

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Node {
    pub dir: PathBuf,
    pub child: Child,
    pub ready: Value,
}

/// A fresh directory.
pub fn directory() -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir =
        std::env::temp_dir().join(format!("dsec-keeper-test-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// Write a table into a directory.
pub fn table(dir: &std::path::Path, services: Value) -> PathBuf {
    let path = dir.join("table.json");
    let table = json!({"run_dir": dir.join("run"), "services": services});
    std::fs::write(&path, table.to_string()).expect("written");
    path
}

impl Node {
    /// A keeper without services.
    pub fn start() -> Self {
        let dir = directory();
        Self::with_services(dir, json!([]))
    }

    pub fn with_services(dir: PathBuf, services: Value) -> Self {
        Self::prepared(dir, services, || Ok(()))
    }

    /// A keeper whose process does `first` before it is executed.
    pub fn prepared(
        dir: PathBuf,
        services: Value,
        first: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let table = table(&dir, services);
        let mut command = Command::new(KEEPER);
        command
            .arg("--table")
            .arg(table)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // SAFETY: what the tests do first is system calls.
        unsafe { command.pre_exec(first) };
        let mut child = command.spawn().expect("the keeper starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let ready = serde_json::from_str(&line).expect("the line is JSON");
        Self { dir, child, ready }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("run/keeper.sock")
    }

    /// A connected runtime. The one before it may hold on for a moment: a test beside this one may just be
    /// forking, and has a copy of every descriptor until it executes.
    pub fn runtime(&self) -> Client {
        let mut client = Client::dial(&self.socket());
        while let Err(refusal) = client.hello("runtime") {
            assert_eq!(refusal.code, "busy");
            std::thread::yield_now();
        }
        client
    }

    /// A connected command line.
    pub fn control(&self) -> Client {
        let mut client = Client::dial(&self.socket());
        client.hello("control").expect("welcome");
        client
    }

    /// Tell it to end, and wait: its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).expect("a PID");
        // SAFETY: a signal to a child that is not yet waited for.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        self.child.wait().expect("waited").code()
    }
}

impl Drop for Node {
    /// A keeper that ends leaves sandboxes to the next `dsec up`; here nobody comes after it.
    fn drop(&mut self) {
        let left = self.children();
        self.stop();
        for child in left {
            let _ = pidfd_send_signal(&child, Signal::KILL);
        }
        std::fs::remove_dir_all(&self.dir).expect("the directory goes");
    }
}

impl Node {
    fn children(&self) -> Vec<OwnedFd> {
        let pid = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let pids = list.unwrap_or_default();
        let pids = pids
            .split(' ')
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .collect()
    }
}
