//! Taking up what a former runtime left: from the keeper's list, the groups, the pool and the output files.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use dsec_proto::keeper::{Call, Object};

use crate::exec::{self, Exec, Stdin};
use crate::groups::Leaf;
use crate::kernel::{poll, sys};
use crate::node::Node;
use crate::sandbox::{self, Phase, Sandbox};
use crate::serve::sandbox_tag;
use crate::session;
use crate::tag::{exec_object, stdin_object, ExecTag, Tag};
use crate::timers::Timer;
use crate::tools::Tool;
use crate::{audit, disks, jobs, net, snapshots};

/// How often what a child has not yet opened is asked for.
const AGAIN: Duration = Duration::from_millis(100);

/// Rebuilds the node's state and sweeps what belongs to nobody.
pub async fn recover(node: &Rc<Node>, objects: &[Object]) {
    let leaves = leaves_in_use(objects);
    let known: HashSet<&str> = objects
        .iter()
        .map(|object| object.object_id.as_str())
        .collect();
    for object in objects {
        if let Some(tag) = sandbox_tag(object) {
            take_up_sandbox(node, object, tag, &leaves);
        }
    }
    let mut orphans = Vec::new();
    for object in objects {
        if !take_up(node, object, &known).await && (object.pid == 0 || object.ended.is_some()) {
            orphans.push(object.object_id.clone());
        }
    }
    node.keeper.ack(orphans).await;
    let live: Vec<Rc<Sandbox>> = node.sandboxes.borrow().values().cloned().collect();
    for sandbox in live {
        snapshots::take_up_sandbox(node, &sandbox).await;
    }
    sweep(node).await;
    net::routed::sweep(node).await;
    count_pending(node);
    let interrupted: Vec<Rc<Sandbox>> = node
        .sandboxes
        .borrow()
        .values()
        .filter(|sandbox| sandbox.gone().is_some())
        .cloned()
        .collect();
    for object in objects {
        if let Some(end) = object.ended.clone() {
            crate::notices::ended(node, &object.object_id, end);
        }
    }
    for sandbox in interrupted {
        // The cause was written before anything was killed: that has to be gone through with.
        sandbox::end::end_again(node, &sandbox).await;
    }
}

/// Leaves of each slot that some object may still be in.
fn leaves_in_use(objects: &[Object]) -> HashMap<String, HashSet<u16>> {
    let mut used: HashMap<String, HashSet<u16>> = HashMap::new();
    for object in objects {
        match Tag::decode(&object.tag) {
            Some(Tag::Exec(tag)) => used.entry(tag.sandbox_id).or_default().insert(tag.leaf),
            Some(Tag::File { sandbox_id, leaf }) => {
                used.entry(sandbox_id).or_default().insert(leaf)
            }
            _ => continue,
        };
    }
    used
}

fn take_up_sandbox(
    node: &Rc<Node>,
    object: &Object,
    tag: crate::tag::SandboxTag,
    leaves: &HashMap<String, HashSet<u16>>,
) {
    let groups = node.layout.slot(tag.slot);
    let number = |leaf: &Leaf| {
        leaf.v2
            .file_name()?
            .to_str()?
            .strip_prefix('e')?
            .parse::<u16>()
            .ok()
    };
    let numbers: Vec<u16> = groups.leaves().iter().filter_map(number).collect();
    let next = numbers.iter().max().map_or(0, |last| last + 1);
    // A cause that was written down stays, whatever is found to have died of it.
    let phase = if tag.cause.is_some() {
        Phase::Ending
    } else {
        Phase::Running
    };
    let sandbox = Sandbox::new(tag, groups, phase, Vec::new(), next);
    *sandbox.audit.borrow_mut() = audit::take_up(node, &sandbox.id);
    let none = HashSet::new();
    let used = leaves.get(&sandbox.id).unwrap_or(&none);
    numbers
        .iter()
        .filter(|index| !used.contains(index))
        .for_each(|index| sandbox.give_leaf(&node.pool, *index));
    sandbox.began(object.started_ns);
    sandbox.paused.set(sandbox.groups.is_frozen());
    sandbox.arm(node);
    node.sandboxes
        .borrow_mut()
        .insert(sandbox.id.clone(), sandbox);
}

/// Takes up one object that is no sandbox. `false`: it belongs to nobody.
async fn take_up(node: &Rc<Node>, object: &Object, known: &HashSet<&str>) -> bool {
    match Tag::decode(&object.tag) {
        Some(Tag::Sandbox(_) | Tag::Layers) => true,
        Some(Tag::Exec(tag)) => take_up_exec(node, object, tag).await,
        Some(Tag::Job(tag)) => {
            jobs::take_up(node, tag);
            true
        }
        Some(Tag::Disk(tag)) => {
            disks::take_up(node, tag);
            true
        }
        Some(Tag::Snapshot(tag)) => snapshots::take_up(node, tag),
        // Taken up when the edge says what is at their other end.
        Some(Tag::Endpoints { sandbox_id } | Tag::Egress { sandbox_id }) => {
            node.sandboxes.borrow().contains_key(&sandbox_id)
        }
        // It is held before its exec is made: of one that never was, nothing may stay.
        Some(Tag::Stdin) => split(&object.object_id)
            .is_some_and(|(sandbox, exec)| known.contains(exec_object(sandbox, exec).as_str())),
        Some(Tag::Cancelled) => {
            let Some((sandbox, exec)) = split(&object.object_id) else {
                return false;
            };
            let lives = node.sandboxes.borrow().contains_key(sandbox);
            if lives {
                node.cancelled
                    .borrow_mut()
                    .insert((sandbox.to_owned(), exec.to_owned()));
            }
            lives
        }
        Some(Tag::File { sandbox_id, leaf }) => {
            // Whoever waited for it has lost the connection with the former runtime.
            if let Ok(sandbox) = node.sandbox(&sandbox_id) {
                leave_in_time(node, &sandbox, leaf);
            }
            false
        }
        Some(Tag::Tool) => {
            let id = object.object_id.trim_start_matches("tool/").to_owned();
            let tool = Tool::new(node.layout.tool(&id));
            node.tools.borrow_mut().insert(id, Rc::new(tool));
            true
        }
        None => {
            tracing::error!(
                object_id = object.object_id,
                "a tag that this version cannot read"
            );
            false
        }
    }
}

/// Sandbox and exec of an object ID.
fn split(object_id: &str) -> Option<(&str, &str)> {
    object_id.split_once('/')?.1.split_once('/')
}

async fn take_up_exec(node: &Rc<Node>, object: &Object, tag: ExecTag) -> bool {
    let Ok(sandbox) = node.sandbox(&tag.sandbox_id) else {
        return false;
    };
    let phase = tag
        .end
        .clone()
        .map_or(exec::Phase::Running, exec::Phase::Ended);
    let exec = Exec::new(node, &sandbox, tag, phase, false);
    exec.started_ns.set(object.started_ns);
    audit::limits::take_up(node, &exec);
    exec.hold(node);
    let mut set_up = true;
    match node
        .keeper
        .call(
            Call::Fetch {
                object_id: object.object_id.clone(),
            },
            &[],
        )
        .await
    {
        Ok((_, fds)) if exec.tag.borrow().terminal => {
            set_up = fds.len() > exec.given();
            if set_up || object.ended.is_some() {
                take_up_opened(node, &exec, fds).await;
            }
        }
        Ok((_, mut pipes)) => {
            set_up = pipes.len() > exec.given() || !exec.tag.borrow().listens;
            let mut opened = pipes.split_off(exec.given().min(pipes.len()));
            exec::listen(node, &exec, &mut opened);
            let streams = if exec.tag.borrow().merged { 1 } else { 2 };
            let more = pipes.split_off(streams.min(pipes.len()));
            for (stream, pipe) in exec.streams.iter().zip(pipes) {
                stream.pipe.replace(Some(Rc::new(pipe)));
            }
            if exec.tag.borrow().session {
                session::take_up(node, &exec, object, more);
            }
        }
        Err(refusal) => tracing::error!(exec_id = exec.id, "its pipes: {}", refusal.message),
    }
    let piped = exec.tag.borrow().stdin && !exec.tag.borrow().terminal;
    if piped && object.ended.is_none() {
        take_up_stdin(node, &exec).await;
    }
    if object.ended.is_none() {
        let (timeout_at, cause, kill_at) = {
            let tag = exec.tag.borrow();
            (tag.timeout_at, tag.cause.is_some(), tag.kill_at)
        };
        match (cause, timeout_at) {
            // The grace may have ended meanwhile; SIGTERM may not have been sent, then the kill comes without it.
            (true, _) => node.set_timer(
                Timer::Grace(exec.id.clone()),
                kill_at.unwrap_or_else(sys::boottime),
            ),
            (false, Some(at)) => node.set_timer(Timer::Timeout(exec.id.clone()), at),
            (false, None) => {}
        }
    }
    node.execs
        .borrow_mut()
        .insert(exec.id.clone(), Rc::clone(&exec));
    exec::follow(node, &exec);
    if !set_up && object.ended.is_none() {
        take_up_later(node, &exec);
    }
    true
}

/// The former runtime died before the program began: what the child opens is with the keeper once it has.
fn take_up_later(node: &Rc<Node>, exec: &Rc<Exec>) {
    let (node, exec) = (Rc::clone(node), Rc::clone(exec));
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(AGAIN).await;
            let runs = exec.is_running();
            let object_id = exec_object(&exec.sandbox.id, &exec.id);
            let fetched = node.keeper.call(Call::Fetch { object_id }, &[]).await;
            let Some((_, mut fds)) = fetched.ok().filter(|_| exec.sandbox.gone().is_none()) else {
                return;
            };
            if fds.len() <= exec.given() && runs {
                continue;
            }
            if exec.tag.borrow().terminal && exec.is_running() {
                take_up_opened(&node, &exec, fds).await;
                return exec::follow(&node, &exec);
            }
            // Also of one that has ended meanwhile: something in the background may still call.
            let mut opened = fds.split_off(exec.given().min(fds.len()));
            return exec::listen(&node, &exec, &mut opened);
        }
    });
}

/// What the child of a terminal's exec has opened: the listener of its filter if it has one, and the master.
async fn take_up_opened(node: &Node, exec: &Rc<Exec>, mut fds: Vec<OwnedFd>) {
    let mut opened = fds.split_off(exec.given().min(fds.len()));
    exec::listen(node, exec, &mut opened);
    fds.extend(opened.pop());
    take_up_terminal(node, exec, fds).await;
}

/// Both ends of the pipe that its output goes through, and the master.
async fn take_up_terminal(node: &Node, exec: &Exec, fds: Vec<OwnedFd>) {
    let mut fds = fds.into_iter();
    let (Some(reader), Some(writer), Some(master)) = (fds.next(), fds.next(), fds.next()) else {
        return tracing::error!(exec_id = exec.id, "its terminal is not held");
    };
    exec.streams[0].pipe.replace(Some(Rc::new(reader)));
    exec.relay.replace(Some(Rc::new(writer)));
    let object_id = stdin_object(&exec.sandbox.id, &exec.id);
    let input = node.keeper.call(Call::Fetch { object_id }, &[]).await;
    let buffer = input.ok().and_then(|(_, mut fds)| fds.pop());
    if let Err(error) = exec::adopt(node, exec, master, buffer).await {
        tracing::error!(exec_id = exec.id, "its terminal: {error}");
    }
}

async fn take_up_stdin(node: &Rc<Node>, exec: &Rc<Exec>) {
    let call = Call::Fetch {
        object_id: stdin_object(&exec.sandbox.id, &exec.id),
    };
    // None is there once it was closed.
    let Ok((_, mut fds)) = node.keeper.call(call, &[]).await else {
        return;
    };
    let (Some(buffer), Some(pipe)) = (fds.pop(), fds.pop()) else {
        return;
    };
    let record = node.config.output().join(&exec.sandbox.id).join(&exec.id);
    match Stdin::again(pipe, buffer, &record) {
        Ok(stdin) => drop(exec.stdin.replace(Some(Rc::new(stdin)))),
        Err(error) => tracing::error!(exec_id = exec.id, "its standard input: {error}"),
    }
}

/// A file operation without a client puts away what it had begun, as its pipe has ended; one that does not is killed.
fn leave_in_time(node: &Rc<Node>, sandbox: &Rc<Sandbox>, leaf: u16) {
    let (node, sandbox) = (Rc::clone(node), Rc::clone(sandbox));
    tokio::task::spawn_local(async move {
        let leaf_of = sandbox.groups.leaf(leaf);
        let left = tokio::time::timeout(crate::files::LEAVE, poll::until_empty(&leaf_of.v2));
        if left.await.is_err() {
            let _ = leaf_of.kill();
            let _ = poll::until_empty(&leaf_of.v2).await;
        }
        if sandbox.gone().is_none() {
            sandbox.give_leaf(&node.pool, leaf);
        }
    });
}

/// Space of subvolumes that were deleted and whose counters still stand.
fn count_pending(node: &Node) {
    let (sandboxes, disks) = (node.sandboxes.borrow(), node.disks.borrow());
    let snapshots = node.snapshots.borrow();
    let kept = disks
        .values()
        .map(|disk| disk.volume)
        .chain(snapshots.values().map(|snapshot| snapshot.volume));
    let live: HashSet<u64> = sandboxes
        .values()
        .map(|sandbox| sandbox.tag.borrow().volume)
        .chain(kept)
        .collect();
    for volume in node.pool.counters() {
        if let Some(bytes) = node
            .pool
            .used_by(volume)
            .filter(|_| !live.contains(&volume))
        {
            node.space_pending(volume, bytes);
        }
    }
}

/// Subvolumes of no sandbox that are not kept either, and tools whose keeper has died.
async fn sweep(node: &Rc<Node>) {
    for group in node.layout.tools() {
        let known = node.tools.borrow().values().any(|tool| tool.is_in(&group));
        if !known {
            let _ = group.kill();
            let _ = group.remove();
        }
    }
    let mut kept = node.disks.borrow().keys().cloned().collect::<Vec<_>>();
    kept.extend(node.snapshots.borrow().keys().cloned());
    let live = node.sandboxes.borrow().keys().cloned().collect::<Vec<_>>();
    let sandboxes: HashSet<String> = live.iter().cloned().collect();
    let names: HashSet<String> = kept.into_iter().chain(live).collect();
    let pool = node.pool.clone();
    let work = move || {
        for name in pool.names().unwrap_or_default() {
            if !names.contains(&name) {
                if let Err(error) = pool.delete(&name) {
                    tracing::warn!(name, "a subvolume of no sandbox: {error}");
                }
            }
        }
    };
    node.objects.run(work).await;
    audit::sweep(node);
    let (node, output) = (Rc::clone(node), node.config.output());
    tokio::task::spawn_local(async move {
        let work = move || sandbox::end::shrink_forgotten(&output, &sandboxes);
        node.objects.run(work).await;
    });
}
