//! Limits that a sandbox has met, from counters: when an exec or run ends, every few seconds while it runs, and when the
//! sandbox ends; endpoints' also when somebody asks. What the counters say is noted once, whoever looks first.

use std::rc::Rc;

use dsec_proto::audit::AuditKind;
use dsec_proto::net::EndpointCount;

use super::{note, Counter, What};
use crate::exec::{self, Exec};
use crate::net;
use crate::node::Node;
use crate::sandbox::Sandbox;

/// So often the endpoints' counts and what runs in the background are looked at.
pub const EVERY: std::time::Duration = std::time::Duration::from_secs(10);
/// Sandboxes or execs that are looked at without letting anything else run.
const AT_ONCE: usize = 64;
const STREAMS: [&str; 2] = ["stdout", "stderr"];

fn limit(reason: &'static str, exec_id: Option<&str>) -> What {
    What {
        kind: AuditKind::Limit,
        reason,
        name: None,
        exec_id: exec_id.map(str::to_owned),
        counter: match reason {
            "memory" => Counter::OomKills,
            "pids" => Counter::PidsRefused,
            _ => Counter::None,
        },
    }
}

/// How much more a counter says than was noted, which is noted by that. One that cannot be read says 0 and sets nothing
/// back.
fn fresh(noted: &mut u64, counted: u64) -> u64 {
    let fresh = counted.saturating_sub(*noted);
    *noted += fresh;
    fresh
}

/// An exec or a run of its has ended: `id` is its own. `hits` as it is told of them.
pub fn ended(node: &Node, exec: &Exec, id: &str, oom_kills: u64, hits: &[String]) {
    killed(node, exec, id, oom_kills);
    output(node, exec, id);
    let sandbox = &exec.sandbox;
    if hits.iter().any(|hit| hit == "pids") {
        forks(
            node,
            sandbox,
            Some(id).filter(|_| sandbox.running.get() <= 1),
        );
    }
    disk(
        node,
        sandbox,
        Some(id),
        hits.iter().any(|hit| hit == "disk"),
    );
}

/// The time of an exec or run is over.
pub fn out_of_time(node: &Node, sandbox: &Sandbox, id: &str) {
    note(node, sandbox, limit("time", Some(id)), 1);
}

/// OOM kills in the group of an exec, by its counter.
fn killed(node: &Node, exec: &Exec, id: &str, counted: u64) {
    let mut noted = exec.oom_noted.get();
    let fresh = fresh(&mut noted, counted);
    exec.oom_noted.set(noted);
    exec.sandbox.audit.borrow_mut().seen.oom_kills += fresh;
    note(node, &exec.sandbox, limit("memory", Some(id)), fresh);
}

/// What a former runtime told of an exec, now that this one has it. A kill that it had not told is found where the whole
/// sandbox is looked at, which keeps with its events how far it was.
pub fn take_up(node: &Node, exec: &Exec) {
    let before = exec.tag.borrow().baseline.oom_kills;
    let counted = exec.cold_leaf(node).oom_kills();
    exec.oom_noted.set(counted.max(before));
    let book = exec.sandbox.audit.borrow();
    let tag = exec.tag.borrow();
    // A session's was told with the run of then, and what has ended has been looked at.
    let passed = tag.session || tag.end.is_some();
    for (index, noted) in exec.output_noted.iter().enumerate() {
        let told = book.has_told(AuditKind::Limit, "output", STREAMS[index], &exec.id);
        noted.set(told || passed && exec.streams[index].log.has_dropped());
    }
}

/// Output that is not kept any more because there was too much of it.
fn output(node: &Node, exec: &Exec, id: &str) {
    for (index, stream) in exec.streams.iter().enumerate() {
        if stream.log.has_dropped() && !exec.output_noted[index].replace(true) {
            let what = What {
                name: Some(STREAMS[index].into()),
                ..limit("output", Some(id))
            };
            note(node, &exec.sandbox, what, 1);
        }
    }
}

/// Forks that the limit of the sandbox refused: whose they were is known only where one exec ran alone.
fn forks(node: &Node, sandbox: &Sandbox, exec_id: Option<&str>) {
    let before = sandbox.tag.borrow().baseline.pids_refused;
    let counted = sandbox.groups.pids_refused().saturating_sub(before);
    let fresh = {
        let seen = &mut sandbox.audit.borrow_mut().seen;
        fresh(&mut seen.pids_refused, counted)
    };
    note(node, sandbox, limit("pids", exec_id), fresh);
}

/// The kernel counts no refused writes: an event is that the disk has become full.
fn disk(node: &Node, sandbox: &Sandbox, exec_id: Option<&str>, full: bool) {
    let before = std::mem::replace(&mut sandbox.audit.borrow_mut().seen.disk_full, full);
    note(
        node,
        sandbox,
        limit("disk", exec_id),
        u64::from(full && !before),
    );
}

/// What a sandbox's endpoints have refused by now.
pub fn endpoints(node: &Node, sandbox: &Sandbox) {
    let counts = sandbox.net.borrow().counts();
    refused(node, sandbox, &counts);
}

fn refused(node: &Node, sandbox: &Sandbox, counts: &[EndpointCount]) {
    let names = sandbox.net.borrow().endpoint_names();
    for (index, (count, name)) in counts.iter().zip(names).enumerate() {
        let fresh = {
            let seen = &mut sandbox.audit.borrow_mut().seen.endpoints;
            seen.resize(seen.len().max(index + 1), 0);
            fresh(&mut seen[index], count.refused)
        };
        let what = What {
            kind: AuditKind::Endpoint,
            reason: "refused",
            name: Some(name),
            exec_id: None,
            counter: Counter::Endpoint(index),
        };
        note(node, sandbox, what, fresh);
    }
}

/// What was in the background, and what nobody has ended yet.
fn rest(node: &Node, sandbox: &Sandbox) {
    let before = sandbox.tag.borrow().baseline.oom_kills;
    let counted = sandbox.groups.oom_kills().saturating_sub(before);
    let fresh = {
        let seen = &mut sandbox.audit.borrow_mut().seen;
        fresh(&mut seen.oom_kills, counted)
    };
    note(node, sandbox, limit("memory", None), fresh);
    forks(node, sandbox, None);
}

/// Nothing of the sandbox lives any more; its groups still stand.
pub fn over(node: &Node, sandbox: &Sandbox, counts: &[EndpointCount]) {
    rest(node, sandbox);
    refused(node, sandbox, counts);
}

/// Looks at everything that runs, for as long as the runtime serves.
pub async fn run(node: Rc<Node>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let execs: Vec<Rc<Exec>> = node.execs.borrow().values().cloned().collect();
        for some in execs.chunks(AT_ONCE) {
            some.iter()
                .filter(|exec| exec.has_begun())
                .for_each(|exec| {
                    // Without its files being opened for good: one that runs for long is looked at seldom.
                    let counted = exec.cold_leaf(&node).oom_kills();
                    let id = exec::id_of_run(exec);
                    killed(&node, exec, &id, counted);
                    output(&node, exec, &id);
                });
            tokio::task::yield_now().await;
        }
        let sandboxes: Vec<Rc<Sandbox>> = node.sandboxes.borrow().values().cloned().collect();
        for some in sandboxes.chunks(AT_ONCE) {
            for sandbox in some.iter().filter(|sandbox| sandbox.gone().is_none()) {
                rest(&node, sandbox);
                endpoints(&node, sandbox);
                let routed = sandbox.net.borrow().is_routed();
                if routed {
                    net::routed::look(&node, sandbox).await;
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fresh;

    /// What was noted stays so when the counter cannot be read for once.
    #[test]
    fn noted_once() {
        let mut noted = 2;
        let counts = [5, 0, 5, 6];
        assert_eq!(
            counts.map(|counted| fresh(&mut noted, counted)),
            [3, 0, 0, 1]
        );
    }
}
