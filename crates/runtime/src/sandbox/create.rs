//! `sandbox.create`. A step that fails undoes the ones before it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::{Answer, Call, Refusal};
use dsec_proto::runtime::{ExecSpec, SandboxSpec, SandboxStarted};
use serde_bytes::ByteBuf;

use super::{Phase, Sandbox};
use crate::groups::Limits;
use crate::keeper::Parcel;
use crate::kernel::sys;
use crate::net::egress::Made;
use crate::node::Node;
use crate::plans::{self, Entry, InitParts};
use crate::profiles::ProfileName;
use crate::slot::Slot;
use crate::store::{self, Root, RootSpec};
use crate::tag::{egress_object, endpoints_object, sandbox_object, SandboxTag, Tag};
use crate::{audit, check, disks, exec, groups, jobs, net, profiles, protected, snapshots};

/// The first leaf that a slot does not have ready, see `SlotGroups::make`.
const FIRST_NEW_LEAF: u16 = 1;

/// Makes a sandbox, or answers with the one that has its ID.
///
/// # Errors
/// What is wrong with the specification, `capacity`, or `node_error` with the phase that failed.
pub async fn create(node: &Rc<Node>, spec: SandboxSpec) -> WireResult<SandboxStarted> {
    check::sandbox(&spec, &node.config.node)?;
    let begun = Instant::now();
    let known = |node: &Node| node.sandboxes.borrow().get(&spec.sandbox_id).cloned();
    if let Some(sandbox) = known(node) {
        return existing(node, &sandbox, &spec).await;
    }
    if node.closing.get() {
        return Err(WireError::new("capacity", "this node is going down"));
    }
    nests_only_where_it_can(&spec)?;
    jobs::check_leased(node, spec.job.as_deref())?;
    if let Some(from) = &spec.from_disk {
        disks::check_kept(node, from, &digests(&spec.layers))?;
    }
    if let Some(from) = &spec.from_snapshot {
        snapshots::check_kept(node, from, &digests(&spec.layers))?;
    }
    node.has_descriptors(8 + net::egress::descriptors(&spec))?;
    let slot = node.slots.take().await?;
    if let Some(sandbox) = known(node) {
        // The same request came twice, and the other one was first.
        node.slots.put_back(slot);
        return existing(node, &sandbox, &spec).await;
    }
    let sandbox = Sandbox::new(
        tag(node, &spec, &slot),
        slot.groups.clone(),
        Phase::Creating,
        vec![0],
        FIRST_NEW_LEAF,
    );
    node.sandboxes
        .borrow_mut()
        .insert(spec.sandbox_id.clone(), Rc::clone(&sandbox));
    fault!("runtime.create.slot");
    let mut phases = vec![("slot", begun.elapsed().as_micros() as u64)];
    match build(node, &sandbox, &spec, slot, &mut phases).await {
        Ok(()) => {
            phases.push(("total", begun.elapsed().as_micros() as u64));
            *sandbox.phases.borrow_mut() = phases
                .into_iter()
                .map(|(name, took)| (name.into(), took))
                .collect();
            Ok(sandbox.started(false))
        }
        Err(error) => Err(give_up(node, &sandbox, error)),
    }
}

/// Nothing of it is left: its ID and its slot are free again.
fn give_up(node: &Node, sandbox: &Sandbox, error: WireError) -> WireError {
    let error = error.about(&sandbox.id);
    node.sandboxes.borrow_mut().remove(&sandbox.id);
    let index = sandbox.tag.borrow().slot;
    sandbox.enter(Phase::Failed(error.clone()));
    node.slots.give_back(index);
    error
}

async fn existing(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    spec: &SandboxSpec,
) -> WireResult<SandboxStarted> {
    let started = sandbox
        .until(|sandbox| match &*sandbox.phase.borrow() {
            Phase::Creating => None,
            Phase::Failed(error) => Some(Err(error.clone())),
            Phase::Running | Phase::Ending | Phase::Ended(_) => Some(Ok(sandbox.started(true))),
        })
        .await?;
    // A former runtime may have died between the init and the main process. While the sandbox lives, a main process
    // that began is known.
    if sandbox.gone().is_none() {
        let begun = begin_net(node, sandbox, spec, Ok(None)).await;
        begun.map_err(|error| give_up(node, sandbox, error))?;
    }
    if let Some(main) = spec.main.as_ref().filter(|_| sandbox.gone().is_none()) {
        let begun = node.execs.borrow().contains_key(&main.exec_id);
        if !begun {
            let begun = begin_main(node, sandbox, main).await;
            begun.map_err(|error| give_up(node, sandbox, error))?;
        }
    }
    Ok(started)
}

async fn begin_net(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    spec: &SandboxSpec,
    made: WireResult<Option<Made>>,
) -> WireResult<()> {
    let begun = async { net::begin(node, sandbox, spec, made?).await };
    if let Err(error) = begun.await {
        // One that is being ended meanwhile has its own end.
        if sandbox.gone().is_none() {
            undo(node, sandbox).await;
            return Err(error);
        }
    }
    Ok(())
}

async fn begin_main(node: &Rc<Node>, sandbox: &Rc<Sandbox>, main: &ExecSpec) -> WireResult<()> {
    if let Err(error) = exec::start(node, main.clone()).await {
        undo(node, sandbox).await;
        return Err(error);
    }
    fault!("runtime.create.main");
    Ok(())
}

fn tag(node: &Node, spec: &SandboxSpec, slot: &Slot) -> SandboxTag {
    SandboxTag {
        sandbox_id: spec.sandbox_id.clone(),
        slot: slot.index,
        volume: 0,
        disk_bytes: spec.disk_bytes,
        layers: digests(&spec.layers),
        profile: profile(spec),
        idle_ns: spec.idle_timeout_ms * 1_000_000,
        lifetime_at: sys::boottime() + spec.lifetime_ms * 1_000_000,
        baseline: slot.groups.baseline(),
        main: spec.main.as_ref().map(|main| main.exec_id.clone()),
        cause: None,
        job: spec.job.clone(),
        keep_ns: None,
        disk_used: None,
        endpoints: spec.endpoints.len() as u8,
        egress: spec.egress.is_some(),
        snapshot_bytes: 0,
        still_for_snapshot: false,
        processors: node.machine.processors(spec.cpu_milli),
    }
}

/// The checks have passed: it is one that there is.
fn profile(spec: &SandboxSpec) -> ProfileName {
    ProfileName::of(&spec.profile).unwrap_or_default()
}

/// Another profile never stands in for one that this machine cannot give.
fn nests_only_where_it_can(spec: &SandboxSpec) -> WireResult<()> {
    if profile(spec) != ProfileName::Nested {
        return Ok(());
    }
    profiles::nesting().map_err(|error| {
        WireError::new("unsupported", format!("profile \"nested\": {error}"))
            .with("field", "profile")
    })
}

fn digests(layers: &[String]) -> Vec<ByteBuf> {
    let bytes = |digest: &String| ByteBuf::from(digest_bytes(digest));
    layers.iter().map(bytes).collect()
}

/// A digest as 32 bytes.
#[must_use]
pub fn digest_bytes(digest: &str) -> Vec<u8> {
    let pairs = digest
        .as_bytes()
        .chunks(2)
        .filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .filter_map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect()
}

type Phases = Vec<(&'static str, u64)>;

async fn build(
    node: &Rc<Node>,
    sandbox: &Rc<Sandbox>,
    spec: &SandboxSpec,
    slot: Slot,
    phases: &mut Phases,
) -> WireResult<()> {
    let limits = Limits {
        memory_bytes: spec.memory_bytes,
        cpu_milli: spec.cpu_milli,
        pids: spec.pids,
    };
    #[cfg(feature = "weaken")]
    let limits = crate::weaken::limits(limits);
    let root = make_root(node, spec, &slot, limits).await?;
    phases.extend(root.phases.iter().copied());
    fault!("runtime.create.root");
    let spawned = Instant::now();
    // Its network is made while the keeper makes its init: what is found wrong of either ends both.
    let (network, started) = tokio::join!(
        net::egress::make_early(node, spec, &slot.network),
        spawn_init(node, sandbox, spec, &slot, root)
    );
    phases.push(("init", spawned.elapsed().as_micros() as u64));
    if let Err(error) = started {
        delete_volume(node, &spec.sandbox_id).await;
        return Err(error);
    }
    fault!("runtime.create.spawned");
    // A namespace that has had a network is nobody's after this one.
    if spec.egress.is_none() {
        node.slots.lend(slot);
    }
    sandbox.enter(Phase::Running);
    sandbox.arm(node);
    jobs::joined(node, sandbox);
    let begun = Instant::now();
    begin_net(node, sandbox, spec, network).await?;
    if spec.egress.is_some() {
        phases.push(("network", begun.elapsed().as_micros() as u64));
    }
    if let Some(main) = &spec.main {
        let begun = Instant::now();
        let started = begin_main(node, sandbox, main).await;
        phases.push(("main", begun.elapsed().as_micros() as u64));
        started?;
    }
    Ok(())
}

async fn make_root(
    node: &Node,
    spec: &SandboxSpec,
    slot: &Slot,
    limits: Limits,
) -> WireResult<Root> {
    let wanted = RootSpec {
        sandbox_id: spec.sandbox_id.clone(),
        layers: spec.layers.clone(),
        disk_bytes: spec.disk_bytes,
        from: spec
            .from_disk
            .as_ref()
            .or(spec.from_snapshot.as_ref())
            .cloned(),
        hostname: spec.hostname.clone(),
        endpoints: spec
            .endpoints
            .iter()
            .map(|endpoint| endpoint.name.clone())
            .collect(),
        start: node.config.range(slot.index),
        idmap: Arc::clone(&slot.idmap),
    };
    let (layers, pool, groups) = (
        Arc::clone(&node.layers),
        node.pool.clone(),
        slot.groups.clone(),
    );
    let begun = Instant::now();
    let brought = crate::layers::bring(node, &spec.layers).await;
    brought.map_err(|error| failed("layers", &error))?;
    let took = begun.elapsed().as_micros() as u64;
    let work = move || {
        let root = store::build(&layers, &pool, &wanted)?;
        match groups.limit(&limits) {
            Ok(()) => Ok(root),
            Err(error) => {
                let _ = pool.delete(&wanted.sandbox_id);
                Err(("limits", error))
            }
        }
    };
    let made = node.objects.run(work).await;
    let mut root = made.map_err(|(phase, error)| failed(phase, &error))?;
    let layers = root.phases.iter_mut().filter(|(name, _)| *name == "layers");
    layers.for_each(|(_, micros)| *micros += took);
    Ok(root)
}

fn failed(phase: &str, error: &std::io::Error) -> WireError {
    match (phase, error.kind()) {
        ("layers" | "disk", std::io::ErrorKind::NotFound) => {
            WireError::not_found(error.to_string()).in_phase(phase)
        }
        ("layers", std::io::ErrorKind::QuotaExceeded) => {
            let full = "sandboxes use as many layers that are not all here as this node can fill";
            WireError::new("capacity", full).in_phase(phase)
        }
        (_, std::io::ErrorKind::StorageFull) => {
            WireError::new("capacity", "the pool of this node is full").in_phase(phase)
        }
        _ => WireError::node(phase, format!("{phase}: {error}")),
    }
}

async fn spawn_init(
    node: &Node,
    sandbox: &Sandbox,
    spec: &SandboxSpec,
    slot: &Slot,
    root: Root,
) -> WireResult<()> {
    sandbox.tag.borrow_mut().volume = root.volume;
    let tag = Tag::Sandbox(sandbox.tag.borrow().clone())
        .encode()
        .map_err(|error| WireError::node("tag", error))?;
    let mut parcel = Parcel::default();
    let files = slot.groups.init().entry();
    let files = files.map_err(|error| failed("groups", &error))?;
    let entry = entry(&files, &mut parcel);
    let (devices, sysfs) = slot.mounts().map_err(|error| failed("mounts", &error))?;
    let shown = node.machine.shown(spec.cpu_milli, spec.memory_bytes);
    let stands = slot.stands(&node.machine, shown);
    let stands = stands.map_err(|error| failed("mounts", &error))?;
    let parts = InitParts {
        entry,
        start: node.config.range(slot.index),
        net: parcel.lend(&slot.network.namespace),
        overlay: parcel.give(root.overlay),
        devices: parcel.give(devices),
        sysfs: parcel.give(sysfs),
        files: root
            .files
            .into_iter()
            .chain(stands)
            .map(|(path, fd)| (path, parcel.give(fd)))
            .collect(),
        protected: spec.protected.clone(),
        shm_bytes: spec.shm_bytes,
        hostname: spec.hostname.clone(),
        program: parcel.lend(&node.init),
    };
    let call = Call::Spawn {
        object_id: sandbox_object(&spec.sandbox_id),
        tag,
        held: vec![parts.net],
        plan: Some(Box::new(plans::init(
            node.profiles.get(profile(spec)),
            parts,
        ))),
        plan_fd: None,
    };
    match node.keeper.call(call, parcel.numbers()).await {
        Ok((Answer::Spawned { started_ns, .. }, _)) => {
            sandbox.began(started_ns);
            Ok(())
        }
        Ok((other, _)) => Err(WireError::node(
            "init",
            format!("unexpected answer {other:?}"),
        )),
        Err(refusal) => {
            Err(protected::refused(&spec.protected, &refusal)
                .unwrap_or_else(|| not_begun(&refusal)))
        }
    }
}

fn not_begun(refusal: &Refusal) -> WireError {
    let message = format!("the sandbox did not begin: {}", refusal.message);
    let Some(failure) = &refusal.failure else {
        return WireError::node("init", message);
    };
    // Of the init's `exec`, only what stands at /dev/null is the image's: that failure has no errno.
    let of_the_image = match failure.step.as_str() {
        "mount_tree" => of_the_tree(failure.errno),
        step => step == "exec" && failure.errno == 0,
    };
    let error = if of_the_image {
        WireError::new("image_error", message)
            .in_phase("image")
            .remedy("The places of /proc, /sys, /dev, /etc/hosts and /etc/resolv.conf must be free of odd files and links")
    } else {
        WireError::node("init", message)
    };
    error
        .with("step", failure.step.clone())
        .with("errno", failure.errno)
}

/// Whether an error of mounting says that the image's own files are in the way: it will be the same next time.
fn of_the_tree(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOENT
            | libc::EPERM
            | libc::EROFS
            | libc::EXDEV
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::EEXIST
            | libc::ELOOP
            | libc::EACCES
            | libc::EINVAL
    )
}

/// A leaf in a plan. Its files must live until the answer.
pub fn entry(files: &groups::Entry, parcel: &mut Parcel) -> Entry {
    Entry {
        born: parcel.lend(&files.born),
        joined: files.joined.iter().map(|fd| parcel.lend(fd)).collect(),
    }
}

/// Removes a sandbox whose main process could not begin, as if it had never been.
async fn undo(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    super::end::end_quietly(node, sandbox).await;
    let objects = vec![
        endpoints_object(&sandbox.id),
        egress_object(&sandbox.id),
        sandbox_object(&sandbox.id),
    ];
    node.keeper.ack(objects).await;
    audit::forget(node, &sandbox.id);
}

/// Deletes the subvolume of a sandbox.
pub async fn delete_volume(node: &Node, sandbox_id: &str) {
    let (pool, name) = (node.pool.clone(), sandbox_id.to_owned());
    let deleted = node.objects.run(move || pool.delete(&name)).await;
    match deleted {
        // Or a former runtime came so far.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::error!(sandbox_id, "the subvolume could not be deleted: {error}");
        }
        _ => {}
    }
}
