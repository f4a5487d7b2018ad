//! Plans from which a test has had protections taken, and the socket by which it says which; in programs for tests alone.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use dsec_proto::keeper::Call;
use dsec_session::plan::{Mount, Namespace, Plan, Source, Step};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::groups::Limits;
use crate::kernel::mounts::attr;

/// What there is to be left out: by an edit of the plan, else (after the gap) by the code that does it.
const NAMES: [&str; 23] = [
    "capabilities",
    "hidepid",
    "hostname",
    "ipc",
    "masks",
    "network_owner",
    "no_new_privs",
    "nodev",
    "own_ids",
    "protected",
    "read_only",
    "rlimits",
    "seccomp",
    "shm_size",
    "user_namespace",
    //
    "close_on_exec",
    "close_range",
    "magic_links",
    "memory",
    "nondumpable",
    "pids",
    "proc_files",
    "quota",
];
/// `BPF_RET | BPF_K`, SECCOMP_RET_ALLOW; of either byte order there is one that dsec runs on.
const ALLOW_ALL: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xFF, 0x7F];
/// What an object is called whose process is in a sandbox: its init, an exec, a file operation.
const OF_SANDBOXES: [&str; 3] = ["sb/", "ex/", "file/"];
/// Far more than an attack takes, and far less than a machine has.
const BOUNDED: u64 = 2000;

/// Hears, a line at a time, the names of what is left out of everything that is made from then on.
pub async fn listen(path: PathBuf) {
    if let Err(error) = serve(&path).await {
        tracing::error!("{}: {error}", path.display());
    }
}

async fn serve(path: &PathBuf) -> io::Result<()> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    tracing::warn!("this runtime leaves protections out when it is told to");
    loop {
        let (stream, _) = listener.accept().await?;
        if let Err(error) = hear(stream).await {
            tracing::warn!("weaken: {error}");
        }
    }
}

async fn hear(stream: UnixStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let names: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let unknown = names.iter().find(|name| !NAMES.contains(&name.as_str()));
        let answer = match unknown {
            Some(name) => format!("unknown {name}\n"),
            None => "done\n".into(),
        };
        if unknown.is_none() {
            dsec_weaken::leave_out(names);
        }
        stream.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

/// Limits without those that are left out.
#[must_use]
pub fn limits(limits: Limits) -> Limits {
    let of = |keeps, given: u64| if keeps { given } else { given.max(BOUNDED) };
    Limits {
        pids: of(dsec_weaken::keeps("pids"), limits.pids),
        memory_bytes: if dsec_weaken::keeps("memory") {
            limits.memory_bytes
        } else {
            limits.memory_bytes.max(BOUNDED << 20)
        },
        ..limits
    }
}

/// A call of the runtime's, with the plan edited if it is that of a process of a sandbox.
#[must_use]
pub fn edited(call: Call) -> Call {
    match call {
        Call::Spawn {
            object_id,
            tag,
            plan: Some(plan),
            plan_fd,
            held,
        } if OF_SANDBOXES.iter().any(|kind| object_id.starts_with(kind)) => Call::Spawn {
            object_id,
            tag,
            plan: Some(Box::new(without(*plan, &dsec_weaken::left_out()))),
            plan_fd,
            held,
        },
        other => other,
    }
}

/// A plan without these protections.
fn without(mut plan: Plan, names: &[String]) -> Plan {
    for name in names {
        leave_out(&mut plan, name);
    }
    plan.steps.insert(0, Step::LeaveOut(names.to_vec()));
    plan
}

fn leave_out(plan: &mut Plan, name: &str) {
    let is = |step: &Step| match step {
        Step::NoNewPrivs => "no_new_privs",
        Step::Rlimits(_) => "rlimits",
        Step::Hostname(_) => "hostname",
        _ => "",
    };
    plan.steps.retain(|step| is(step) != name);
    match name {
        "hostname" => share(plan, Namespace::Uts),
        "ipc" => share(plan, Namespace::Ipc),
        "user_namespace" => {
            share(plan, Namespace::User);
            plan.clone.ids = None;
        }
        "own_ids" => {
            if let Some(ids) = &mut plan.clone.ids {
                // Everybody's first, which no sandbox of a test needs.
                ids.start = SHARED;
            }
        }
        "network_owner" if plan.clone.net.take().is_some() => {
            plan.clone.new.push(Namespace::Net);
        }
        _ => {}
    }
    for step in &mut plan.steps {
        match step {
            Step::Caps { keep } if name == "capabilities" => *keep = u64::MAX,
            // Not without one: its listener is waited for.
            Step::Seccomp { program, .. } if name == "seccomp" => *program = ALLOW_ALL.to_vec(),
            Step::MountTree(tree) => {
                tree.mounts.retain(|mount| kind(mount) != name);
                tree.mounts.retain(|mount| !is_in_the_way(mount, name));
                tree.mounts.iter_mut().for_each(|mount| open(mount, name));
            }
            _ => {}
        }
    }
}

/// A range that is nobody's: of the host's highest IDs.
const SHARED: u32 = u32::MAX - 2 * crate::config::RANGE;

/// Have the host's namespace of a kind.
fn share(plan: &mut Plan, shared: Namespace) {
    plan.clone.new.retain(|kind| *kind != shared);
    for step in &mut plan.steps {
        if let Step::Enter { kinds, .. } = step {
            kinds.retain(|kind| *kind != shared);
        }
    }
}

fn kind(mount: &Mount) -> &'static str {
    match mount.source {
        Source::Masked => "masks",
        Source::ReadOnly if mount.target.starts_with("/proc/") => "read_only",
        Source::ReadOnly | Source::Pinned => "protected",
        _ => "",
    }
}

/// What could not be mounted so: another's file in the layers' ID map, queues of the machine's own namespace.
fn is_in_the_way(mount: &Mount, name: &str) -> bool {
    match name {
        "user_namespace" | "own_ids" => mount.target.starts_with("/etc/"),
        "ipc" => mount.target == "/dev/mqueue",
        _ => false,
    }
}

fn open(mount: &mut Mount, name: &str) {
    let Source::New {
        options,
        attributes,
        ..
    } = &mut mount.source
    else {
        return;
    };
    match name {
        "hidepid" => options.retain(|(key, _)| key != "hidepid"),
        "shm_size" => options.retain(|(key, _)| key != "size"),
        "nodev" => *attributes &= !attr::NODEV,
        _ => {}
    }
}
