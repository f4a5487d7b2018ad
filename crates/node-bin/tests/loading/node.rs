//! A keeper with a holder and a fetcher, and the runtime's side of the holder.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dsec_holder::{link::Link, table};
use dsec_proto::loading::{FromHolder, Going, LayerLoading, LoadingCounts, ToHolder, VERSION};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::time::Timespec;
use serde_json::json;

use super::layer::Layer;

/// A user that is nobody's.
pub const UID: u32 = 0x3fff_ff7f;
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Node {
    pub dir: PathBuf,
    keeper: Child,
    link: Link,
    turn: u64,
}

impl Node {
    /// With a fetcher that lets readers wait for so long.
    pub fn start(patience_s: u64) -> Self {
        Self::with_stores(&["store"], patience_s)
    }

    /// With stores that are asked in this order; layers are published to `store`.
    pub fn with_stores(stores: &[&str], patience_s: u64) -> Self {
        Self::with_logs(stores, patience_s, None)
    }

    /// With parts that all log to one file, not to one of theirs in its directory.
    pub fn with_logs(stores: &[&str], patience_s: u64, log: Option<&str>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/tmp/dsec-load{}x{number}", std::process::id()));
        for path in ["run", "layers"].iter().chain(stores) {
            fs::create_dir_all(dir.join(path)).expect("a directory");
        }
        let at = |path: &str| dir.join(path).display().to_string();
        let stores = stores.iter().copied();
        let stores: Vec<_> = stores
            .map(|path| json!({"directory": {"path": at(path)}}))
            .collect();
        let config = json!({"stores": stores, "patience_s": patience_s});
        fs::write(dir.join("fetcher.json"), config.to_string()).expect("written");
        let service = |name: &str, argv: Vec<String>| {
            json!({
                "name": name, "argv": argv, "env": [["PATH", "/usr/bin:/bin"]],
                "log": log.map_or_else(|| at(&format!("{name}.log")), str::to_owned),
                "listen": [{"unix": {"path": at(&format!("run/{name}.sock")), "mode": 0o600}}], "cgroups": [],
            })
        };
        let word = str::to_owned;
        let holder = vec![
            word(env!("CARGO_BIN_EXE_dsec-holder")),
            word("serve"),
            word("--keeper"),
            at("run/keeper.sock"),
            word("--fetcher"),
            at("run/fetcher.sock"),
        ];
        let fetcher = vec![
            word(env!("CARGO_BIN_EXE_dsec-fetcher")),
            word("serve"),
            word("--uid"),
            UID.to_string(),
            word("--config"),
            at("fetcher.json"),
        ];
        let services = [service("holder", holder), service("fetcher", fetcher)];
        let table = json!({"run_dir": at("run"), "services": services});
        fs::write(dir.join("table.json"), table.to_string()).expect("written");
        table::prepare().expect("descriptors");
        let keeper = launch(&dir);
        let link = dial(&dir);
        Self {
            dir,
            keeper,
            link,
            turn: 0,
        }
    }

    pub fn publish(&self, size: usize) -> Layer {
        Layer::publish(&self.dir.join("store"), &self.dir.join("layers"), size)
    }

    fn ask(&mut self, make: impl Fn(u64) -> ToHolder, directory: Option<&Path>) -> FromHolder {
        let end = Instant::now() + PATIENCE;
        loop {
            self.turn += 1;
            let fds: Vec<OwnedFd> = directory
                .map(|path| File::open(path).expect("a directory").into())
                .into_iter()
                .collect();
            if self.link.tell(&make(self.turn), fds).is_ok() {
                if let Some(answer) = next(&self.link, self.turn) {
                    return answer;
                }
            }
            // The holder died in between: all of these may be asked again.
            assert!(Instant::now() < end, "the holder does not answer");
            self.link = dial(&self.dir);
        }
    }

    /// Has a layer filled on demand, or says why not.
    pub fn open(&mut self, layer: &Layer) -> Result<Option<u32>, String> {
        let digest = &layer.digest;
        let make = |turn| ToHolder::Open {
            turn,
            digest: digest.clone(),
        };
        match self.ask(make, Some(&layer.directory)) {
            FromHolder::Opened { layer, .. } => Ok(layer),
            FromHolder::Refused { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Lets go of a layer by the number that it was opened as.
    pub fn close(&mut self, layer: &Layer, number: u32) {
        let close = |turn| ToHolder::Close {
            turn,
            layer: number,
            digest: layer.digest.clone(),
        };
        let closed = self.ask(close, None);
        assert!(matches!(closed, FromHolder::Closed { .. }), "{closed:?}");
    }

    pub fn report(&mut self) -> Going {
        match self.ask(|turn| ToHolder::Ask { turn, after: 0 }, None) {
            FromHolder::Going { going, .. } => going,
            other => panic!("{other:?}"),
        }
    }

    pub fn going(&mut self) -> (LoadingCounts, Vec<LayerLoading>) {
        let going = self.report();
        (going.counts, going.layers)
    }

    /// Asks until the answer is as it should be.
    pub fn until(&mut self, what: &str, holds: impl Fn(&LoadingCounts, &[LayerLoading]) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (counts, layers) = self.going();
            if holds(&counts, &layers) {
                return;
            }
            assert!(Instant::now() < end, "{what}: {counts:?} {layers:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a service says so in its log.
    pub fn says(&self, name: &str, what: &str) {
        let log = self.dir.join(format!("{name}.log"));
        let end = Instant::now() + PATIENCE;
        while !fs::read_to_string(&log).unwrap_or_default().contains(what) {
            assert!(Instant::now() < end, "{name} does not say: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills a service of the keeper's as soon as it lives.
    pub fn kill_one(&self, name: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.kill(name) {
            assert!(Instant::now() < end, "no {name}");
            std::thread::yield_now();
        }
    }

    fn kill(&self, name: &str) -> bool {
        let pids = self.pids(name);
        // SAFETY: children of this test's own keeper, which have not been waited for while they are listed.
        let kill = |pid: &i32| unsafe { libc::kill(*pid, libc::SIGKILL) } == 0;
        pids.iter().filter(|pid| kill(pid)).count() > 0
    }

    /// A service of the keeper's, once it lives.
    pub fn pid(&self, name: &str) -> i32 {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(pid) = self.pids(name).first() {
                return *pid;
            }
            assert!(Instant::now() < end, "no {name}");
            std::thread::yield_now();
        }
    }

    fn pids(&self, name: &str) -> Vec<i32> {
        let parent = self.keeper.id().to_string();
        let processes = fs::read_dir("/proc").expect("proc").flatten();
        let of_it = processes.filter_map(|process| {
            let stat = fs::read_to_string(process.path().join("stat")).ok()?;
            let (head, tail) = stat.rsplit_once(')')?;
            let (pid, program) = head.split_once(' ')?;
            let its = program == format!("(dsec-{name}") && tail.split(' ').nth(2)? == parent;
            its.then(|| pid.parse().ok())?
        });
        of_it.collect()
    }

    /// As after a crash of everything: only what is on disk stays.
    pub fn restart(&mut self) {
        self.end();
        self.keeper = launch(&self.dir);
        self.link = dial(&self.dir);
    }

    fn end(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            for log in ["holder.log", "fetcher.log"] {
                eprintln!(
                    "{}",
                    fs::read_to_string(self.dir.join(log)).unwrap_or_default()
                );
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn launch(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_dsec-keeper"))
        .arg("--table")
        .arg(dir.join("table.json"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the keeper starts")
}

/// A connection to a holder that answers.
fn dial(dir: &Path) -> Link {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(mut link) = Link::dial(&dir.join("run/holder.sock")) {
            let said = link.tell(&ToHolder::Hello { version: VERSION }, Vec::new());
            if said.is_ok() && next(&link, 0).is_some() {
                return link;
            }
        }
        assert!(Instant::now() < end, "no holder");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The answer of a turn; none when the connection breaks.
fn next(link: &Link, wanted: u64) -> Option<FromHolder> {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    loop {
        let mut waits = [PollFd::new(link, PollFlags::IN)];
        assert_eq!(poll(&mut waits, Some(&patience)), Ok(1), "no answer");
        let (answer, _) = link.hear::<FromHolder>().ok()??;
        let turn = match &answer {
            FromHolder::Hello { .. } => 0,
            FromHolder::Opened { turn, .. }
            | FromHolder::Refused { turn, .. }
            | FromHolder::Closed { turn }
            | FromHolder::Going { turn, .. } => *turn,
        };
        if turn == wanted {
            return Some(answer);
        }
    }
}
