//! Spawn plans: the order of steps that keeps a sandbox from its host. Pure.

use dsec_proto::runtime::ExecSpec;
use dsec_session::plan::{
    Clone3, End, Exec, FdIndex, FileOp, IdRange, Ids, Mount, Namespace, Plan, Source, Step, Tree,
};
use serde_bytes::ByteBuf;

use crate::check::known_user;
use crate::config::RANGE;
use crate::kernel::mounts::attr;
use crate::profiles::{Profile, MASKED, READ_ONLY};
use crate::protected;

/// Descriptors of a leaf: where to be born, what to join.
pub struct Entry {
    /// v2 directory.
    pub born: FdIndex,
    /// v1 files.
    pub joined: Vec<FdIndex>,
}

/// What the first process of a sandbox is made of.
pub struct InitParts {
    /// Its leaf.
    pub entry: Entry,
    /// First host ID.
    pub start: u32,
    /// Network namespace.
    pub net: FdIndex,
    /// The overlay.
    pub overlay: FdIndex,
    /// /dev.
    pub devices: FdIndex,
    /// /sys.
    pub sysfs: FdIndex,
    /// (path, file) bound over the layers' own, and over the kernel's.
    pub files: Vec<(&'static str, FdIndex)>,
    /// Paths that nobody inside can change.
    pub protected: Vec<String>,
    /// Size of /dev/shm.
    pub shm_bytes: u64,
    /// Host name.
    pub hostname: String,
    /// The program.
    pub program: FdIndex,
}

fn mount(target: &str, source: Source) -> Mount {
    Mount {
        target: target.into(),
        source,
        optional: false,
    }
}

fn new(target: &str, kind: &str, options: &[(&str, &str)], attributes: u64) -> Mount {
    let options = options
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect();
    mount(
        target,
        Source::New {
            kind: kind.into(),
            options,
            attributes,
        },
    )
}

fn tree(profile: &Profile, parts: &InitParts) -> Tree {
    let plain = attr::NOSUID | attr::NODEV | attr::NOEXEC;
    let shm = parts.shm_bytes.to_string();
    // All sandboxes together have `kernel.pty.max` less its reserve: none may take them all.
    let terminals = [
        ("ptmxmode", "0666"),
        ("mode", "0620"),
        ("gid", "5"),
        ("max", "128"),
    ];
    let mut mounts = vec![
        new("/proc", "proc", &[("hidepid", "invisible")], plain),
        mount("/dev", Source::Detached(parts.devices)),
        new(
            "/dev/pts",
            "devpts",
            &terminals,
            attr::NOSUID | attr::NOEXEC,
        ),
        new(
            "/dev/shm",
            "tmpfs",
            &[("mode", "1777"), ("size", &shm)],
            plain,
        ),
    ];
    if profile.nests {
        mounts.extend(unmasked_proc(plain));
    }
    mounts.extend([
        new("/dev/mqueue", "mqueue", &[], plain),
        mount("/sys", Source::Detached(parts.sysfs)),
    ]);
    mounts.extend(
        parts
            .files
            .iter()
            .map(|(path, fd)| mount(path, Source::Detached(*fd))),
    );
    let optional = |path: &&str, source| Mount {
        target: (*path).into(),
        source,
        optional: true,
    };
    mounts.extend(
        READ_ONLY
            .iter()
            .map(|path| optional(path, Source::ReadOnly)),
    );
    mounts.extend(MASKED.iter().map(|path| optional(path, Source::Masked)));
    if profile.nests {
        mounts.push(optional(&NO_GROUPS, Source::Masked));
    }
    mounts.extend(protected::mounts(&parts.protected));
    Tree {
        root: parts.overlay,
        mounts,
    }
}

/// Container runtimes look at what is mounted here before they look for a cgroup, and take an empty tmpfs for hierarchies
/// of which there are none.
const NO_GROUPS: &str = "/sys/fs/cgroup";

/// Only who sees one /proc without masks may mount another. This one stands where the message queues, which come
/// next, cover the way to it: nobody can open it, and nobody can move them away.
fn unmasked_proc(attributes: u64) -> [Mount; 2] {
    [
        new("/dev/mqueue", "tmpfs", &[("mode", "0700")], attributes),
        new("/dev/mqueue/proc", "proc", &[], attributes),
    ]
}

/// The plan of a sandbox's init.
#[must_use]
pub fn init(profile: &Profile, parts: InitParts) -> Plan {
    let tree = tree(profile, &parts);
    let mut steps = vec![
        Step::Setsid,
        Step::JoinCgroups(parts.entry.joined),
        Step::UnshareCgroup,
        Step::MountTree(tree),
        Step::PivotRoot,
        Step::Hostname(parts.hostname),
        profile.rlimits(),
    ];
    steps.push(profile.filter());
    steps.extend(profile.bounds());
    steps.push(Step::Ids(Some(Ids {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    })));
    let clone = Clone3 {
        new: vec![
            Namespace::User,
            Namespace::Pid,
            Namespace::Mount,
            Namespace::Uts,
            Namespace::Ipc,
        ],
        enter: None,
        cgroup: Some(parts.entry.born),
        ids: Some(IdRange {
            start: parts.start,
            count: RANGE,
        }),
        net: Some(parts.net),
    };
    let argv = vec![ByteBuf::from("init")];
    let program = Exec {
        programs: Vec::new(),
        file: Some(parts.program),
        argv,
        env: Vec::new(),
        fds: Vec::new(),
    };
    Plan {
        clone,
        steps,
        end: End::Exec(program),
    }
}

/// Who a process in a sandbox is, and where.
pub struct Entrant<'a> {
    /// The sandbox's init.
    pub object_id: String,
    /// Its leaf.
    pub entry: Entry,
    /// First host ID.
    pub start: u32,
    /// As Docker's `-u`.
    pub user: &'a str,
    /// Where it begins.
    pub cwd: Option<&'a [u8]>,
    /// Make that when it is missing.
    pub create_cwd: bool,
    /// How many processors it runs on, if not all.
    pub processors: Option<u32>,
    /// Pipes that belong to the user.
    pub owned: Vec<FdIndex>,
}

fn entering(entrant: &Entrant<'_>) -> Clone3 {
    Clone3 {
        new: Vec::new(),
        enter: Some(entrant.object_id.clone()),
        cgroup: Some(entrant.entry.born),
        ids: None,
        net: None,
    }
}

fn enter(entrant: &Entrant<'_>) -> Vec<Step> {
    let kinds = vec![
        Namespace::User,
        Namespace::Mount,
        Namespace::Net,
        Namespace::Uts,
        Namespace::Ipc,
        Namespace::Cgroup,
    ];
    vec![
        Step::Setsid,
        Step::JoinCgroups(entrant.entry.joined.clone()),
        Step::Enter {
            object_id: entrant.object_id.clone(),
            kinds,
        },
    ]
}

fn become_user(entrant: &Entrant<'_>) -> Step {
    Step::Ids(known_user(entrant.user).map(|(uid, gid)| Ids {
        uid,
        gid,
        groups: Vec::new(),
    }))
}

/// A missing working directory is made by root, as Docker does: its user need not be allowed to.
fn make_directory(path: Vec<u8>) -> [Step; 2] {
    let root = Ids {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
    [Step::Ids(Some(root)), Step::Chdir { path, create: true }]
}

fn resolve(entrant: &Entrant<'_>) -> Option<Step> {
    known_user(entrant.user)
        .is_none()
        .then(|| Step::ResolveUser {
            user: entrant.user.into(),
            start: entrant.start,
            owned: entrant.owned.clone(),
        })
}

/// The plan of an exec.
#[must_use]
pub fn exec(
    profile: &Profile,
    spec: &ExecSpec,
    entrant: &Entrant<'_>,
    fds: Vec<(FdIndex, i32)>,
    listens: bool,
) -> Plan {
    let mut steps = enter(entrant);
    steps.push(profile.rlimits());
    steps.extend(entrant.processors.map(Step::Processors));
    steps.extend(resolve(entrant));
    steps.push(if listens {
        profile.recording_filter()
    } else {
        profile.filter()
    });
    let path = entrant.cwd.unwrap_or(b"/").to_vec();
    // Once: who has become root with few capabilities may not bound them again.
    steps.extend(profile.bounds());
    if entrant.create_cwd && known_user(entrant.user) != Some((0, 0)) {
        steps.extend(make_directory(path.clone()));
    }
    steps.push(become_user(entrant));
    if let Some(size) = spec.pty {
        // As the user: the terminal belongs to whoever opens it.
        steps.push(Step::OpenPty {
            rows: size.rows,
            cols: size.cols,
        });
    }
    steps.push(Step::Chdir {
        path,
        create: entrant.create_cwd,
    });
    let programs = spec
        .programs
        .clone()
        .unwrap_or_else(|| spec.argv[..1].to_vec());
    let mut env = spec.env.clone();
    if let (Some((uid, _)), false) = (
        known_user(&spec.user),
        env.iter().any(|pair| pair.starts_with(b"HOME=")),
    ) {
        env.push(ByteBuf::from(if uid == 0 {
            "HOME=/root"
        } else {
            "HOME=/"
        }));
    }
    let program = Exec {
        programs,
        file: None,
        argv: spec.argv.clone(),
        env,
        fds,
    };
    Plan {
        clone: entering(entrant),
        steps,
        end: End::Exec(program),
    }
}

/// The plan of a file operation.
#[must_use]
pub fn file(profile: &Profile, entrant: &Entrant<'_>, operation: FileOp) -> Plan {
    let mut steps = enter(entrant);
    steps.push(profile.rlimits());
    steps.extend(resolve(entrant));
    steps.extend(profile.bounds());
    steps.push(become_user(entrant));
    steps.push(Step::Chdir {
        path: entrant.cwd.unwrap_or(b"/").to_vec(),
        create: false,
    });
    Plan {
        clone: entering(entrant),
        steps,
        end: End::File(operation),
    }
}

#[cfg(test)]
mod tests;
