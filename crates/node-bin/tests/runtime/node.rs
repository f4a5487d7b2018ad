//! A node of its own for each test: keeper, runtime, one layer with busybox. Taken down, and looked at for leaks, at the end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dsec_proto::error::WireError;
use dsec_proto::keeper::{Call, Request};
use dsec_proto::runtime::{Empty, SandboxSpec};
use serde_json::json;

use super::client::{unique, Client};

const PROGRAMS: [&str; 31] = [
    "sh", "true", "echo", "cat", "ls", "id", "sleep", "env", "ps", "mount", "dd", "head", "yes",
    "wc", "stat", "kill", "sync", "touch", "mkdir", "rm", "seq", "tail", "unshare", "su", "pwd",
    "mkfifo", "grep", "chown", "hostname", "nc", "tr",
];

/// The one layer of all tests, built once.
struct Store {
    path: PathBuf,
    digest: String,
}

fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("runtime-layer");
        let _ = fs::remove_dir_all(&path);
        let root = path.join("root");
        for name in [
            "bin", "etc", "tmp", "dev", "proc", "sys", "root", "home/u", "nodes",
        ] {
            fs::create_dir_all(root.join(name)).expect("a directory");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox"))
            .expect("busybox (Debian: busybox-static) is installed");
        for name in PROGRAMS {
            symlink("busybox", root.join("bin").join(name)).expect("a link");
        }
        let passwd = "root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000:u:/home/u:/bin/sh\n";
        fs::write(root.join("etc/passwd"), passwd).expect("passwd");
        fs::write(
            root.join("etc/group"),
            "root:x:0:\nu:x:1000:\nextra:x:2000:u\n",
        )
        .expect("group");
        run(Command::new("chmod").arg("1777").arg(root.join("tmp")));
        // A device node of the host in an image: it must be of no use.
        run(Command::new("mknod")
            .arg(root.join("nodes/zero"))
            .args(["c", "1", "5"]));
        run(Command::new("chmod")
            .arg("666")
            .arg(root.join("nodes/zero")));
        let digest = "ab".repeat(32);
        let layer = path.join("layers").join(&digest);
        fs::create_dir_all(&layer).expect("a directory");
        let blob = format!("--blobdev={}", layer.join("data").display());
        run(Command::new("mkfs.erofs")
            .args(["--chunksize=4096", &blob])
            .arg(layer.join("metadata"))
            .arg(&root));
        Store { path, digest }
    })
}

fn run(command: &mut Command) {
    let done = command.output().expect("the program is installed");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

pub struct Node {
    pub name: String,
    pub dir: PathBuf,
    keeper: Option<Child>,
}

impl Node {
    pub fn start() -> Self {
        Self::with_holder(None)
    }

    /// One whose layers that are not all here are filled by whoever listens at this socket of its `run`.
    pub fn with_holder(socket: Option<&str>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rt{}x{number}", std::process::id() % 1_000_000);
        let dir = PathBuf::from(format!("/tmp/dsec-{name}"));
        for path in ["run", "data"] {
            fs::create_dir_all(dir.join(path)).expect("a directory");
        }
        let mut node = Self {
            name,
            dir,
            keeper: None,
        };
        node.configure(number, socket);
        node.launch();
        node
    }

    fn configure(&self, number: u32, holder: Option<&str>) {
        let at = |path: &str| self.dir.join(path).display().to_string();
        let config = json!({
            "node": self.name, "run_dir": at("run"), "data_dir": at("data"),
            "layers_dirs": [at("no-such-store"), store().path.join("layers")],
            "pool_mib": 512, "pool_image": at("data/pool.img"), "cgroup_root": format!("dsec-test/{}", self.name),
            // Blocks are 2^28 wide; the tests of one process take turns in the upper half of what there is.
            "id_block": 0x8000_0000_u32 + (number % 7) * 0x1000_0000,
            "edge_uid": 0, "max_sandboxes": 8, "init_path": env!("CARGO_BIN_EXE_dsec-init"),
            "holder_socket": holder.map(|name| at(&format!("run/{name}"))),
        });
        fs::write(self.dir.join("runtime.json"), config.to_string()).expect("written");
        let table = json!({
            "run_dir": at("run"),
            "services": [{
                "name": "runtime",
                "argv": [env!("CARGO_BIN_EXE_dsec-runtime"), "serve", "--config", at("runtime.json")],
                "env": [["PATH", "/usr/sbin:/usr/bin:/sbin:/bin"]],
                "log": at("runtime.log"),
                "listen": [{"unix": {"path": at("run/runtime.sock"), "mode": 0o600}}],
                "cgroups": [],
            }],
        });
        fs::write(self.dir.join("table.json"), table.to_string()).expect("written");
    }

    /// Starts a keeper, which starts the runtime.
    pub fn launch(&mut self) {
        let keeper = Command::new(env!("CARGO_BIN_EXE_dsec-keeper"))
            .arg("--table")
            .arg(self.dir.join("table.json"))
            .stdout(Stdio::null())
            .spawn()
            .expect("the keeper starts");
        self.keeper = Some(keeper);
        self.client();
    }

    /// A connection to a runtime that answers, however often it has to be dialled.
    pub fn client(&self) -> Client {
        let end = Instant::now() + Duration::from_secs(30);
        let path = self.dir.join("run/runtime.sock");
        loop {
            if let Ok(mut client) = Client::dial(&path) {
                client.open("hello", &json!({"version": 1}));
                if client.hear().is_ok() {
                    return client;
                }
            }
            assert!(Instant::now() < end, "no runtime: {}", self.log());
            std::thread::yield_now();
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("runtime.log")).unwrap_or_default()
    }

    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            sandbox_id: format!("sb-{}-{}", self.name, unique()),
            layers: vec![store().digest.clone()],
            memory_bytes: 64 << 20,
            cpu_milli: 2000,
            pids: 32,
            disk_bytes: 8 << 20,
            shm_bytes: 1 << 20,
            hostname: "box".into(),
            profile: "default".into(),
            idle_timeout_ms: 0,
            lifetime_ms: 600_000,
            main: None,
            job: None,
            from_disk: None,
            from_snapshot: None,
            endpoints: Vec::new(),
            egress: None,
            protected: Vec::new(),
        }
    }

    /// The digest of a layer of the node's own that looks as if not all of it were here.
    pub fn partial_layer(&self, of: &str) -> String {
        let digest = of.repeat(32);
        let there = store().path.join("layers").join(&store().digest);
        let own = self.dir.join("no-such-store").join(&digest);
        fs::create_dir_all(&own).expect("a directory");
        for name in ["metadata", "data"] {
            fs::copy(there.join(name), own.join(name)).expect("copied");
        }
        fs::write(own.join("filled"), b"").expect("written");
        digest
    }

    /// A running sandbox.
    pub fn sandbox(&self, client: &mut Client) -> String {
        let spec = self.spec();
        client
            .create(&spec)
            .unwrap_or_else(|error| panic!("{error:?}\n{}", self.log()));
        spec.sandbox_id
    }

    fn runtime_pid(&self) -> i32 {
        let keeper = self.keeper.as_ref().expect("runs").id();
        let children =
            fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).expect("children");
        let is_runtime = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("serve"))
        };
        children
            .split_whitespace()
            .find(is_runtime)
            .expect("a runtime")
            .parse()
            .expect("a number")
    }

    /// Kills the runtime; the keeper starts another.
    pub fn kill_runtime(&self) {
        // SAFETY: a child of our own keeper.
        unsafe { libc::kill(self.runtime_pid(), libc::SIGKILL) };
    }

    /// Kills the keeper and waits for it.
    pub fn kill_keeper(&mut self) {
        let mut keeper = self.keeper.take().expect("runs");
        keeper.kill().expect("killed");
        keeper.wait().expect("waited for");
    }

    /// Directories of the node in each hierarchy.
    pub fn groups(&self) -> Vec<PathBuf> {
        ["memory", "cpuacct", "cpu", "pids", "unified", ""]
            .iter()
            .map(|name| {
                Path::new("/sys/fs/cgroup")
                    .join(name)
                    .join("dsec-test")
                    .join(&self.name)
            })
            .filter(|path| path.exists())
            .collect()
    }

    /// Processes in any group of the node.
    pub fn processes(&self) -> Vec<String> {
        fn below(path: &Path, found: &mut Vec<String>) {
            let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().map(str::to_owned));
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    below(&entry.path(), found);
                }
            }
        }
        let mut found = Vec::new();
        self.groups()
            .iter()
            .for_each(|path| below(path, &mut found));
        found
    }

    /// Stops all sandboxes, shuts the node down and looks for what is left.
    pub fn down(mut self) {
        let mut client = self.client();
        for sandbox in client.list().sandboxes {
            client.stop(&sandbox.sandbox_id);
            client.forget(&sandbox.sandbox_id);
        }
        assert!(self.processes().is_empty());
        let done: Result<Empty, WireError> = client.call("shutdown", &Empty {});
        done.unwrap_or_else(|error| panic!("{error:?}\n{}", self.log()));
        self.shut_keeper();
        assert_eq!(self.groups(), Vec::<PathBuf>::new(), "groups");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(&self.name), "mounts");
        for entry in fs::read_dir("/sys/block").expect("sysfs").flatten() {
            let backing =
                fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            assert!(!backing.contains(&self.name), "a loop device");
        }
        assert!(!self.dir.join("data/pool.img").exists(), "the pool's file");
    }

    fn shut_keeper(&mut self) {
        use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
        let socket =
            net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(self.dir.join("run/keeper.sock")).expect("an address");
        net::connect(&socket, &address).expect("the keeper listens");
        let hello = Call::Hello {
            version: 1,
            role: "control".into(),
        };
        for (id, call) in [(1, hello), (2, Call::Shutdown)] {
            let packet = rmp_serde::to_vec_named(&Request { id, call }).expect("encodes");
            net::send(&socket, &packet, net::SendFlags::empty()).expect("sent");
            net::recv(&socket, &mut [0_u8; 65_536], net::RecvFlags::empty()).expect("answered");
        }
        let mut keeper = self.keeper.take().expect("runs");
        assert!(keeper.wait().expect("waited for").success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            // A failed test: the runtime kills its sandboxes when its keeper dies.
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
