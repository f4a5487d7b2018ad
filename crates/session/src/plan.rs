//! The spawn plan: every step between one clone and the program it becomes, as data.
//!
//! The runtime writes plans, the keeper executes them and knows no policy. Steps run in the order of the
//! list, in the forked child, before the program is executed; the order is the one that `docs/security.md`
//! argues for (non-dumpable first, seccomp while CAP_SYS_ADMIN is still held, IDs last).

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

pub use crate::file_plan::{FileCall, FileEvent, FileInfo, FileOp, FileReport};

/// Position of a descriptor in the list that travels with the message.
pub type FdIndex = u16;

/// Kinds of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespace {
    /// User IDs, group IDs, capabilities.
    User,
    /// Process IDs.
    Pid,
    /// Mounts. A new one begins with an empty root and /proc, not with the host's mounts.
    Mount,
    /// Network.
    Net,
    /// Host name.
    Uts,
    /// System V IPC, POSIX message queues.
    Ipc,
    /// View of the cgroup tree; made by a step after the groups are joined, never by the clone.
    Cgroup,
}

/// One process to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The one clone.
    pub clone: Clone3,
    /// Steps in the child, in order.
    pub steps: Vec<Step>,
    /// What the child becomes.
    pub end: End,
}

/// Arguments of the clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clone3 {
    /// New namespaces; `Cgroup` is not among them.
    pub new: Vec<Namespace>,
    /// Object (a sandbox's init) whose PID namespace the child is born in.
    pub enter: Option<String>,
    /// cgroup v2 directory to be born in.
    pub cgroup: Option<FdIndex>,
    /// ID range of a new user namespace. The clone runs with effective uid and gid `start`, so that the
    /// kernel charges the namespace's objects to the range and not to root; the keeper writes the maps.
    pub ids: Option<IdRange>,
    /// Network namespace the child is born in. It belongs to the initial user namespace, which a child of a
    /// new user namespace has no rights in: `SetNs` would come too late for it.
    pub net: Option<FdIndex>,
}

/// `count` host IDs from `start`, seen inside as 0..count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// First host ID.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// One step in the child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A session and process group of its own.
    Setsid,
    /// Write "0" to each open `tasks` (v1) or `cgroup.procs` (v2) file.
    JoinCgroups(Vec<FdIndex>),
    /// Enter the namespaces of an object's process through its pidfd, in one `setns`.
    Enter {
        /// The object, usually a sandbox's init.
        object_id: String,
        /// Which of its namespaces; never `Pid`, which the clone entered.
        kinds: Vec<Namespace>,
    },
    /// Enter one namespace by descriptor; in a plan with `Clone3::ids`, the network comes by `Clone3::net`.
    SetNs {
        /// An open namespace file.
        fd: FdIndex,
        /// Its kind.
        kind: Namespace,
    },
    /// A cgroup namespace rooted at the groups joined so far.
    UnshareCgroup,
    /// Build the tree that `PivotRoot` then makes the root.
    MountTree(Tree),
    /// Make the mounted tree the root and let go of the old one.
    PivotRoot,
    /// Set the host name.
    Hostname(String),
    /// Set resource limits: (RLIMIT number, soft, hard).
    Rlimits(Vec<(u32, u64, u64)>),
    /// Run on so many processors, where more are allowed: what programs size themselves by. They may widen it again.
    Processors(u32),
    /// Look the user up in the entered root's passwd and group files (hostile input), for `Ids`. The keeper
    /// gives `owned` descriptors to the user found, then lets the child go on.
    ResolveUser {
        /// `name`, `uid`, `name:group` or `uid:gid`, as Docker's `-u`.
        user: String,
        /// Host ID of the sandbox's ID 0.
        start: u32,
        /// Pipes that the program must be able to reopen by /dev/stdout and the like.
        owned: Vec<FdIndex>,
    },
    /// Set capabilities: bits outside `keep` leave the bounding set and the inheritable set, for good.
    Caps {
        /// Capability bits kept.
        keep: u64,
    },
    /// Become this user: groups, gid, uid. `None`: the one that `ResolveUser` found, with its home.
    Ids(Option<Ids>),
    /// Install a classic BPF program (array of `sock_filter`, native byte order).
    Seccomp {
        /// The program.
        #[serde(with = "serde_bytes")]
        program: Vec<u8>,
        /// The keeper holds the listener of what it says is to be asked about, after the object's other descriptors
        /// and before what later steps open.
        #[serde(default)]
        listen: bool,
    },
    /// Set no_new_privs.
    NoNewPrivs,
    /// Change to a directory of the entered root; `create` makes it (and its parents) when missing.
    Chdir {
        /// Absolute path.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// As Docker does with an image's WorkingDir.
        create: bool,
    },
    /// Open a terminal of the entered root's devpts as the user that `Ids` made, and make it this session's. The
    /// program gets it as 0, 1 and 2; the keeper holds its master after the object's other descriptors.
    OpenPty {
        /// Lines.
        rows: u16,
        /// Characters in a line.
        cols: u16,
    },
    /// Signal that the kernel sends when the keeper dies.
    ParentDeathSignal(i32),
    /// Run the service as this host user.
    HostUser {
        /// User ID.
        uid: u32,
        /// Group ID.
        gid: u32,
    },
    /// Leave protections out of what comes after, in programs for tests.
    #[cfg(feature = "weaken")]
    LeaveOut(Vec<String>),
}

/// IDs as seen inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A root and what is mounted on it, parents before children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// A detached mount: the overlay.
    pub root: FdIndex,
    /// Mounts on it.
    pub mounts: Vec<Mount>,
}

/// One mount below the root. The target is resolved within the new root (hostile links stay inside) and
/// made when it is missing, as a file or a directory to match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path in the sandbox.
    pub target: String,
    /// What is put there.
    pub source: Source,
    /// Leave it out, without error, when the target does not exist.
    pub optional: bool,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A detached mount made by the runtime; attributes are its own.
    Detached(FdIndex),
    /// A new instance of a filesystem.
    New {
        /// `proc`, `devpts`, `tmpfs`, `mqueue`.
        kind: String,
        /// Options, key and value.
        options: Vec<(String, String)>,
        /// MOUNT_ATTR_* bits.
        attributes: u64,
    },
    /// A read-only bind of the target onto itself.
    ReadOnly,
    /// A bind of the target onto itself: as it was, but it cannot be renamed or removed.
    Pinned,
    /// Nothing to see: a file is covered by /dev/null, a directory by one empty read-only tmpfs.
    Masked,
}

/// What the child becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Execute a program.
    Exec(Exec),
    /// Do one file operation in forked code and exit; its outcome is the `report` of `ended`.
    File(FileOp),
}

/// The only `execve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Tried in this order, the first that exists wins. Without a slash: searched in the PATH of `env`.
    pub programs: Vec<ByteBuf>,
    /// The program itself, instead of a path (init, services).
    pub file: Option<FdIndex>,
    /// Arguments, argv[0] included; an empty argv[0] stands for the path of the program that was found.
    pub argv: Vec<ByteBuf>,
    /// `KEY=value` each. HOME is added from `ResolveUser` when missing.
    pub env: Vec<ByteBuf>,
    /// (descriptor, number in the program); 0, 1, 2 that are not listed are /dev/null. All others close.
    pub fds: Vec<(FdIndex, i32)>,
}

/// Where a plan failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the step, `clone`, `exec` or `file`.
    pub step: String,
    /// The errno; 0 when `message` is all there is.
    pub errno: i32,
    /// What was being done.
    pub message: String,
}
