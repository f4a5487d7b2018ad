//! The service table: starting, sockets, restarting, ending.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dsec_proto::keeper::{Answer, Call, Listen, Service, ServiceState};
use serde_json::{json, Value};

use super::client::Client;
use super::node::{directory, table, Node, KEEPER};
use super::plans::{host, pipe};

const PATIENCE: Duration = Duration::from_secs(20);

/// Do it again until it is so: what other processes do is not told to anybody here.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        std::thread::yield_now();
    }
}

pub fn service(dir: &Path, name: &str, script: &str, listen: Value) -> Value {
    json!({
        "name": name,
        "argv": ["/bin/sh", "-c", script, name],
        "env": [["PATH", "/usr/bin:/bin"], ["OUT", dir.join(name)]],
        "log": dir.join(format!("{name}.log")),
        "listen": listen,
        "cgroups": [],
    })
}

pub fn states(control: &mut Client) -> Vec<ServiceState> {
    match control.call(Call::Services) {
        Ok(Answer::Services(states)) => states,
        other => panic!("{other:?}"),
    }
}

fn restart(
    control: &mut Client,
    name: &str,
    definition: Option<Service>,
) -> super::client::Answered {
    control.call(Call::Restart {
        service: name.to_owned(),
        definition: definition.map(Box::new),
    })
}

fn text(path: &PathBuf) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .filter(|text| text.ends_with('\n'))
}

/// Services find their sockets by LISTEN_FDS, write to their logs, and the ready line names the addresses.
#[test]
fn starts_services_with_sockets() {
    let dir = directory();
    let socket = dir.join("edge.sock");
    let listen = json!([
        {"unix": {"path": socket, "mode": 0o600}},
        {"tcp": {"host": "127.0.0.1", "port": 0}},
    ]);
    let script = "echo $LISTEN_FDS $LISTEN_FDNAMES $(readlink /proc/self/fd/3 | cut -d: -f1) > $OUT; echo logged; exec sleep 1000";
    let node = Node::with_services(dir.clone(), json!([service(&dir, "edge", script, listen)]));
    let addresses = node.ready["addresses"]["edge"]
        .as_array()
        .expect("addresses");
    assert_eq!(addresses[0], json!(format!("unix:{}", socket.display())));
    let tcp = addresses[1]
        .as_str()
        .and_then(|text| text.strip_prefix("tcp:"))
        .expect("a TCP address");
    TcpStream::connect(tcp).expect("connected");
    UnixStream::connect(&socket).expect("connected");
    assert_eq!(
        until("the output", || text(&dir.join("edge"))),
        "2 edge.sock:tcp socket\n"
    );
    assert_eq!(until("the log", || text(&dir.join("edge.log"))), "logged\n");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&socket).expect("there"));
    assert_eq!(mode & 0o777, 0o600);
}

/// A service that dies comes back, and its sockets stay.
#[test]
fn restarts_what_dies() {
    let dir = directory();
    let listen = json!([{"tcp": {"host": "127.0.0.1", "port": 0}}]);
    let node = Node::with_services(
        dir.clone(),
        json!([service(&dir, "a", "exec sleep 1000", listen)]),
    );
    let mut control = node.control();
    let first = states(&mut control).remove(0);
    // SAFETY: a signal to a process that this test has made.
    unsafe { libc::kill(first.pid, libc::SIGKILL) };
    let again = until("the restart", || {
        let state = states(&mut control).remove(0);
        (state.pid != first.pid && state.pid != 0).then_some(state)
    });
    assert_eq!((again.restarts, again.addresses), (1, first.addresses));
    assert_eq!(
        again.last_end.and_then(|end| end.signal),
        Some(libc::SIGKILL)
    );
}

/// A restart takes a new definition, ends the old program by SIGTERM, and answers when the new one runs.
#[test]
fn restarts_with_a_new_definition() {
    let dir = directory();
    let first = service(
        &dir,
        "a",
        "trap 'echo ended > $OUT; exit 0' TERM; echo up > $OUT.up; while :; do sleep 0.1; done",
        json!([]),
    );
    let node = Node::with_services(dir.clone(), json!([first]));
    let mut control = node.control();
    let old = states(&mut control).remove(0);
    until("the trap", || text(&dir.join("a.up")));
    let new: Service = serde_json::from_value(service(&dir, "a", "exec sleep 1000", json!([])))
        .expect("a service");
    restart(&mut control, "a", Some(new.clone())).expect("restarted");
    let state = states(&mut control).remove(0);
    assert_ne!(state.pid, old.pid);
    assert_eq!(
        (state.restarts, text(&dir.join("a"))),
        (0, Some("ended\n".to_owned()))
    );
    let other = Service {
        name: "b".to_owned(),
        ..new.clone()
    };
    assert_eq!(
        restart(&mut control, "a", Some(other))
            .expect_err("refused")
            .code,
        "invalid"
    );
    assert_eq!(
        restart(&mut control, "none", None)
            .expect_err("refused")
            .code,
        "invalid"
    );
    let missing = Service {
        argv: vec!["/no/program".to_owned()],
        ..new.clone()
    };
    assert_eq!(
        restart(&mut control, "a", Some(missing))
            .expect_err("refused")
            .code,
        "failed"
    );
    let socket = Listen::Unix {
        path: dir.join("s").display().to_string(),
        mode: 0o660,
    };
    restart(
        &mut control,
        "a",
        Some(Service {
            listen: vec![socket],
            ..new
        }),
    )
    .expect("repaired");
    UnixStream::connect(dir.join("s")).expect("connected");
}

/// Shutdown is refused while objects live; then services end in reverse order and the sockets go.
#[test]
fn shuts_down_in_order() {
    let dir = directory();
    let trap = "trap 'echo $0 >> $(dirname $OUT)/order; exit 0' TERM; echo up > $OUT; while :; do sleep 0.1; done";
    let services = ["first", "second"].map(|name| service(&dir, name, trap, json!([])));
    let mut node = Node::with_services(dir.clone(), json!(services));
    let mut runtime = node.runtime();
    until("the traps", || {
        text(&dir.join("first")).and_then(|_| text(&dir.join("second")))
    });
    let (reader, writer) = pipe();
    runtime
        .spawn("a", host(&["cat"], &[(0, 0)]), &[reader])
        .expect("spawned");
    let mut control = node.control();
    assert_eq!(
        control.call(Call::Shutdown).expect_err("refused").code,
        "live"
    );
    drop(writer);
    runtime.ended("a");
    control.call(Call::Shutdown).expect("ended");
    assert_eq!(node.child.wait().expect("waited").code(), Some(0));
    assert_eq!(
        text(&dir.join("order")).expect("written"),
        "second\nfirst\n"
    );
    assert!(!node.socket().exists());
}

fn attempt(table: &Path) -> Output {
    Command::new(KEEPER)
        .arg("--table")
        .arg(table)
        .stdin(Stdio::null())
        .output()
        .expect("run")
}

fn error_of(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr);
    let last = line.lines().last().expect("a line").to_owned();
    let error: Value = serde_json::from_str(&last).expect("JSON");
    error["error"].as_str().expect("a code").to_owned()
}

/// A second keeper, a port in use, a missing program and a bad table each have an exit code and a word.
#[test]
fn refuses_to_start() {
    let node = Node::start();
    let second = attempt(&node.dir.join("table.json"));
    assert_eq!(
        (second.status.code(), error_of(&second).as_str()),
        (Some(4), "already_running")
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port();
    let dir = directory();
    let listen = json!([{"tcp": {"host": "127.0.0.1", "port": port}}]);
    let busy = attempt(&table(
        &dir,
        json!([service(&dir, "a", "exec sleep 1000", listen)]),
    ));
    assert_eq!(
        (busy.status.code(), error_of(&busy).as_str()),
        (Some(5), "address_in_use")
    );
    assert!(!dir.join("run/keeper.sock").exists());
    let mut missing = service(&dir, "b", "", json!([]));
    missing["argv"] = json!(["/no/such/program"]);
    let good = service(&dir, "a", "exec sleep 1000", json!([]));
    let failed = attempt(&table(&dir, json!([good, missing])));
    assert_eq!(
        (failed.status.code(), error_of(&failed).as_str()),
        (Some(6), "service_failed")
    );
    std::fs::write(dir.join("table.json"), "{}").expect("written");
    let bad = attempt(&dir.join("table.json"));
    assert_eq!(
        (bad.status.code(), error_of(&bad).as_str()),
        (Some(2), "usage")
    );
    std::fs::remove_dir_all(dir).expect("removed");
}

/// Detached, the command returns with the ready line, and the keeper has a session of its own.
#[test]
fn detaches() {
    let dir = directory();
    let path = table(
        &dir,
        json!([service(&dir, "a", "exec sleep 1000", json!([]))]),
    );
    let output = Command::new(KEEPER)
        .args(["--detach", "--table"])
        .arg(&path)
        .output()
        .expect("run");
    assert!(output.status.success());
    let ready: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    let pid = i32::try_from(ready["pid"].as_i64().expect("a PID")).expect("a PID");
    // SAFETY: asks for a number.
    assert_eq!(unsafe { libc::getsid(pid) }, pid);
    let second = Command::new(KEEPER)
        .args(["--detach", "--table"])
        .arg(&path)
        .output()
        .expect("run");
    assert_eq!(
        (second.status.code(), error_of(&second).as_str()),
        (Some(4), "already_running")
    );
    let mut control = Client::dial(&dir.join("run/keeper.sock"));
    control.hello("control").expect("welcome");
    control.call(Call::Shutdown).expect("ended");
    until("the end", || {
        std::fs::metadata(format!("/proc/{pid}/exe")).err()
    });
    std::fs::remove_dir_all(dir).expect("removed");
}
