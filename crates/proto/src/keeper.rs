//! `keeper.sock`: SOCK_SEQPACKET, one msgpack map per packet, descriptors by SCM_RIGHTS.
//!
//! One `runtime` connection at a time, one `holder`, and any number of short `control` connections from the CLI.

use dsec_session::plan::{Failure, FdIndex, Plan};
use serde::{Deserialize, Serialize};

/// Version of this protocol; `Hello` refuses another.
pub const VERSION: u32 = 1;
/// Longest packet; a longer plan travels in a sealed memfd.
pub const MAX_PACKET: usize = 64 * 1024;
/// Most descriptors in one packet.
pub const MAX_FDS: usize = 64;
/// What the IDs of the layer holder's objects begin with; those of the runtime do not.
pub const HOLDER_OBJECTS: &str = "holder/";
/// Longest tag.
pub const MAX_TAG: usize = 4096;

/// Client to keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, repeated in the reply.
    pub id: u64,
    /// What to do.
    pub call: Call,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// First message of a connection.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// `runtime`, `holder` or `control`.
        role: String,
    },
    /// Make a process. A known `object_id` answers with the object that exists (`existing: true`). The
    /// answer comes when the program has been executed (or the file operation has begun), or has failed; with it
    /// come the descriptors that the plan itself has opened, to whoever has asked before.
    Spawn {
        /// Unique among the objects not yet acknowledged.
        object_id: String,
        /// Opaque, at most [`MAX_TAG`] bytes.
        #[serde(with = "serde_bytes")]
        tag: Vec<u8>,
        /// The plan, or `None` when it travels in `plan_fd`.
        plan: Option<Box<Plan>>,
        /// A sealed memfd with the msgpack of the plan.
        plan_fd: Option<FdIndex>,
        /// Descriptors kept with the object until `Ack`, in this order; after them what the plan itself opens.
        held: Vec<FdIndex>,
    },
    /// Keep descriptors and a tag without a process (the layer namespace). Replaces one of that ID.
    Put {
        /// The object.
        object_id: String,
        /// Opaque.
        #[serde(with = "serde_bytes")]
        tag: Vec<u8>,
        /// Descriptors.
        held: Vec<FdIndex>,
    },
    /// Replace a tag.
    Retag {
        /// The object.
        object_id: String,
        /// Opaque.
        #[serde(with = "serde_bytes")]
        tag: Vec<u8>,
    },
    /// All objects, in pages.
    List {
        /// Continue after this ID.
        after: Option<String>,
    },
    /// The held descriptors of an object, with the reply.
    Fetch {
        /// The object.
        object_id: String,
    },
    /// Forget objects that have ended (or have no process). Live ones are refused, `not_ended`.
    Ack {
        /// The objects.
        object_ids: Vec<String>,
    },
    /// Signal a live object's process, or its process group. An ended one answers `ended`, harmlessly.
    Signal {
        /// The object.
        object_id: String,
        /// Signal number.
        signal: i32,
        /// The whole process group of the leader.
        group: bool,
    },
    /// Control: state of the services.
    Services,
    /// Control: replace the service table (the installed version) for the named services and restart them.
    Restart {
        /// Name of a service, or `keeper` for an exec in place.
        service: String,
        /// The new definition; `None` keeps the present one.
        definition: Option<Box<Service>>,
    },
    /// Control: end all services in reverse order, then the keeper. Refused while objects live.
    Shutdown,
}

/// Keeper to client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Answer to a request.
    Reply {
        /// The request's.
        id: u64,
        /// What came of it.
        result: Result<Answer, Refusal>,
    },
    /// An object's process has ended; sent once to the connected runtime, and seen again in `List` until
    /// acknowledged.
    Ended {
        /// The object.
        object_id: String,
        /// How it ended.
        end: Ended,
    },
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Nothing to say.
    Done,
    /// To `Hello`.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The keeper's own PID.
        pid: i32,
    },
    /// To `Spawn`.
    Spawned {
        /// PID in the host's namespace.
        pid: i32,
        /// CLOCK_BOOTTIME at the clone, nanoseconds.
        started_ns: u64,
        /// The object was there before.
        existing: bool,
    },
    /// To `List`.
    Objects {
        /// A page of them, by ID.
        objects: Vec<Object>,
        /// Ask again after the last one.
        more: bool,
    },
    /// To `Services`.
    Services(Vec<ServiceState>),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// `version`, `busy`, `unknown_object`, `not_ended`, `ended`, `gone` (the entered object has ended),
    /// `failed` (a step failed, see `failure`), `invalid`, `live`.
    pub code: String,
    /// For people.
    pub message: String,
    /// Where a plan failed.
    pub failure: Option<Failure>,
}

/// One object that the keeper holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its ID.
    pub object_id: String,
    /// The runtime's tag.
    #[serde(with = "serde_bytes")]
    pub tag: Vec<u8>,
    /// PID of its process; 0 without one.
    pub pid: i32,
    /// CLOCK_BOOTTIME, nanoseconds.
    pub started_ns: u64,
    /// Set once the process has ended.
    pub ended: Option<Ended>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code, when it exited.
    pub exit_code: Option<i32>,
    /// Signal number, when one ended it.
    pub signal: Option<i32>,
    /// CLOCK_BOOTTIME at the wait, nanoseconds.
    pub ended_ns: u64,
    /// A file operation's [`dsec_session::plan::FileReport`], msgpack.
    #[serde(with = "serde_bytes")]
    pub report: Option<Vec<u8>>,
    /// The spawn failed after the connection that had asked for it was gone: there is neither an exit code
    /// nor a signal of a program.
    #[serde(default)]
    pub failure: Option<Failure>,
}

/// A process that the keeper starts and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `runtime`, `edge`, `apiserver`, …
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, whole.
    pub env: Vec<(String, String)>,
    /// File that standard output and error are appended to.
    pub log: String,
    /// Listening sockets, which outlive restarts: descriptors 3, 4, … in the service, by LISTEN_FDS.
    pub listen: Vec<Listen>,
    /// cgroup files (`tasks` or `cgroup.procs`) to join.
    pub cgroups: Vec<String>,
}

/// A listening socket that the keeper makes once and keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listen {
    /// A Unix stream socket with this mode.
    Unix {
        /// Path, made anew over a stale one.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// A TCP socket; port 0 takes a free one.
    Tcp {
        /// IP address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// State of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceState {
    /// Its name.
    pub name: String,
    /// PID, 0 while it is down.
    pub pid: i32,
    /// How often it was started anew after a death.
    pub restarts: u32,
    /// How the last one ended.
    pub last_end: Option<Ended>,
    /// Addresses it listens on, `unix:PATH` or `tcp:HOST:PORT`.
    pub addresses: Vec<String>,
}
