//! Bringing a runtime up, and the loops that run for as long as it does.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dsec_proto::keeper::{Call, Object};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, Notify, Semaphore};

use crate::config::Config;
use crate::ending::{Ending, Reason};
use crate::groups::{Layout, Warm};
use crate::keeper::{Keeper, Notice};
use crate::kernel::{mounts, namespaces, poll, sys};
use crate::layers::Mounted;
use crate::net::link::{self, ProxyLink};
use crate::node::Node;
use crate::output::Budget;
use crate::profiles::Profiles;
use crate::seen::Machine;
use crate::slots::Slots;
use crate::store::{self, Layers};
use crate::tag::{SandboxTag, Tag, LAYERS_OBJECT};
use crate::workers::Workers;
use crate::{audit, connection, deadlines, memory, notices, recover};

/// Threads in the layers' mount namespace.
const OBJECT_THREADS: usize = 2;
/// Most execs that are on their way into their sandboxes at once; the others wait for their turn.
const LAUNCHES: usize = 384;
/// How long a start waits for what it has killed.
const TO_DIE: Duration = Duration::from_secs(2);
/// As Docker's, when the node allows so many.
const DESCRIPTORS: u64 = 1 << 20;

/// Runs a runtime until its keeper is gone.
///
/// # Errors
/// What kept it from coming up.
pub fn serve(config: &Path) -> Result<(), String> {
    let config = Config::read(config)?;
    if let Some(directory) = &config.fault_points {
        let failed = |error| format!("{}: {error}", directory.display());
        dsec_fault::turn_on(directory).map_err(failed)?;
        tracing::warn!("fault points are on: {}", directory.display());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let local = tokio::task::LocalSet::new();
    local
        .block_on(&runtime, run(config))
        .map_err(|error| error.to_string())
}

async fn run(config: Config) -> io::Result<()> {
    sys::raise_descriptor_limit();
    let ending = Ending::prepare()?;
    let listener = inherited_listener()?;
    let (keeper, notices) = Keeper::connect(config.run_dir.join("keeper.sock")).await?;
    let objects = keeper
        .list()
        .await
        .map_err(|refusal| io::Error::other(refusal.message))?;
    let (proxy, said) = ProxyLink::new();
    let node = node(config, keeper, &objects, proxy).await?;
    recover::recover(&node, &objects).await;
    tokio::task::spawn_local(deadlines::run(Rc::clone(&node)));
    tokio::task::spawn_local(memory::run(Rc::clone(&node)));
    tokio::task::spawn_local(audit::run(Rc::clone(&node)));
    tokio::task::spawn_local(audit::limits::run(Rc::clone(&node)));
    tokio::task::spawn_local(audit::calls::run(Rc::clone(&node)));
    tokio::task::spawn_local(link::run(Rc::clone(&node), said));
    tokio::task::spawn_local(accept(Rc::clone(&node), listener));
    #[cfg(feature = "weaken")]
    tokio::task::spawn_local(crate::weaken::listen(
        node.config.run_dir.join("weaken.sock"),
    ));
    tracing::info!(
        node = node.config.node,
        sandboxes = node.sandboxes.borrow().len(),
        "serving"
    );
    tokio::select! {
        lost = watch_keeper(&node, notices) => lost,
        reason = ending.came() => match reason? {
            Reason::Asked => Ok(()),
            Reason::Orphaned => {
                kill_all(&node);
                Err(io::Error::other("the keeper is dead; all sandboxes were killed"))
            }
        },
    }
}

/// The listening socket is the keeper's: callers that come while no runtime lives wait in its queue.
fn inherited_listener() -> io::Result<UnixListener> {
    if std::env::var("LISTEN_FDS").as_deref() != Ok("1") {
        return Err(io::Error::other(
            "started without its socket: the keeper passes it as descriptor 3",
        ));
    }
    // SAFETY: LISTEN_FDS says that 3 is ours, and nothing else has taken it yet.
    let fd = unsafe { OwnedFd::from_raw_fd(3) };
    // SAFETY: a plain fcntl, so that no child inherits it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    sys::nonblocking(&fd)?;
    UnixListener::from_std(fd.into())
}

async fn node(
    config: Config,
    keeper: Rc<Keeper>,
    objects: &[Object],
    proxy: ProxyLink,
) -> io::Result<Rc<Node>> {
    let layout = Layout::probe(&config.cgroup_root)?;
    let threads = layer_threads(&keeper, objects).await?;
    std::fs::create_dir_all(config.output())?;
    let opened = {
        let config = config.clone();
        let open = move || {
            let pool = store::open_pool(&config)?;
            Ok::<_, io::Error>((
                pool,
                Layers::open(config.layers_dirs.clone(), config.layer_mounts())?,
            ))
        };
        threads.run(open).await
    };
    let (pool, layers) = opened?;
    let used: HashSet<u32> = objects
        .iter()
        .filter_map(sandbox_tag)
        .map(|tag| tag.slot)
        .collect();
    empty_slots(&layout, &used).await?;
    let slots = Slots::new(&config, layout.clone(), used)?;
    let init = sys::sealed("init", &std::fs::read(&config.init_path)?)?;
    // What cannot be read is not dumpable from its first instruction on.
    let init = std::fs::File::from(init);
    init.set_permissions(PermissionsExt::from_mode(0o111))?;
    let init = OwnedFd::from(init);
    let descriptors = sys::descriptor_limit().1.min(DESCRIPTORS);
    let calls = audit::calls::Calls::begin()?;
    Ok(Rc::new(Node {
        boot_id: store::boot_id()?,
        keeper,
        layout,
        objects: threads,
        mounted: Mounted::new(&layers, config.holder_socket.clone()),
        layers: Arc::new(layers),
        pool,
        slots,
        routing: Default::default(),
        profiles: Profiles::new(descriptors, calls.is_some()),
        machine: Machine::read()?,
        descriptor_limit: sys::descriptor_limit().0,
        init,
        sandboxes: RefCell::default(),
        execs: RefCell::default(),
        launches: Semaphore::new(LAUNCHES),
        warm: Warm::default(),
        held: Cell::new(0),
        cancelled: RefCell::default(),
        timers: RefCell::default(),
        timers_changed: Notify::new(),
        pending: RefCell::default(),
        budget: RefCell::new(Budget::new(config.output_mib << 20)),
        subscriber: RefCell::default(),
        tools: RefCell::default(),
        files: RefCell::default(),
        watches: crate::files::counted::Counts::default(),
        transfers: RefCell::default(),
        transferring: crate::files::counted::Counts::default(),
        next_file: Cell::new(0),
        jobs: RefCell::default(),
        disks: RefCell::default(),
        snapshots: RefCell::default(),
        proxy,
        audit: audit::Audit::default(),
        calls,
        closing: Cell::new(false),
        config,
    }))
}

/// Kills what is in slots of no sandbox: its keeper died, or its creation was interrupted.
async fn empty_slots(layout: &Layout, used: &HashSet<u32>) -> io::Result<()> {
    for index in layout.slots()? {
        let groups = layout.slot(index);
        if !used.contains(&index) && !groups.is_empty() {
            tracing::warn!(index, "killing what is in a slot of no sandbox");
            groups.kill()?;
            if tokio::time::timeout(TO_DIE, poll::until_empty(&groups.v2))
                .await
                .is_err()
            {
                tracing::error!(index, "what was killed does not die");
            }
        }
    }
    Ok(())
}

/// The tag of a sandbox's init.
#[must_use]
pub fn sandbox_tag(object: &Object) -> Option<SandboxTag> {
    match Tag::decode(&object.tag) {
        Some(Tag::Sandbox(tag)) => Some(tag),
        _ => None,
    }
}

/// Threads in the node's mount namespace for layers: the one that a former runtime left with the keeper, or a new one.
async fn layer_threads(keeper: &Rc<Keeper>, objects: &[Object]) -> io::Result<Workers> {
    let refused = |refusal: dsec_proto::keeper::Refusal| io::Error::other(refusal.message);
    let known = objects
        .iter()
        .any(|object| object.object_id == LAYERS_OBJECT);
    let namespace = if known {
        let call = Call::Fetch {
            object_id: LAYERS_OBJECT.into(),
        };
        let (_, mut fds) = keeper.call(call, &[]).await.map_err(refused)?;
        fds.pop()
            .ok_or_else(|| io::Error::other("the keeper has lost the layers' namespace"))?
    } else {
        let made = std::thread::spawn(namespaces::own_mount_namespace).join();
        let namespace =
            made.map_err(|_| io::Error::other("the thread of the layers' namespace died"))??;
        let tag = Tag::Layers.encode().map_err(io::Error::other)?;
        let call = Call::Put {
            object_id: LAYERS_OBJECT.into(),
            tag,
            held: vec![0],
        };
        keeper
            .tell(call, &[namespace.as_raw_fd()])
            .await
            .map_err(refused)?;
        namespace
    };
    Workers::start("objects", OBJECT_THREADS, move || {
        namespaces::enter_mount_namespace(&namespace)?;
        mounts::mounted().map(drop)
    })
}

async fn accept(node: Rc<Node>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let uid = socket.peer_cred().map(|peer| peer.uid());
                if uid
                    .as_ref()
                    .is_ok_and(|uid| *uid == 0 || *uid == node.config.edge_uid)
                {
                    tokio::task::spawn_local(connection::serve(Rc::clone(&node), socket));
                } else {
                    tracing::warn!("refused a caller: {uid:?}");
                }
            }
            Err(error) => {
                tracing::error!("accept: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Passes on what the keeper tells, until it is gone for good.
async fn watch_keeper(
    node: &Rc<Node>,
    mut told: mpsc::UnboundedReceiver<Notice>,
) -> io::Result<()> {
    while let Some(notice) = told.recv().await {
        match notice {
            Notice::Ended(object_id, end) => notices::ended(node, &object_id, end),
            Notice::Reconnected => {
                let node = Rc::clone(node);
                tokio::task::spawn_local(async move { notices::look_again(&node).await });
            }
            Notice::Lost => break,
        }
    }
    kill_all(node);
    Err(io::Error::other(
        "the keeper is gone; all sandboxes were killed",
    ))
}

/// Without a keeper nobody waits for these processes or tells of their ends.
fn kill_all(node: &Node) {
    for sandbox in node.sandboxes.borrow().values() {
        if let Err(error) = sandbox.groups.kill() {
            tracing::error!(sandbox_id = sandbox.id, "kill: {error}");
        }
    }
    for tool in node.layout.tools() {
        if let Err(error) = tool.kill() {
            tracing::error!("a tool: {error}");
        }
    }
}
