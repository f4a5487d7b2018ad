//! Leases of jobs, pauses and kept disks: what the runtime does by itself, and what it refuses.

use dsec_proto::error::WireError;
use dsec_proto::holding::{DiskList, Frozen, JobLease, OnLost, OneJob, SandboxFreeze, Thawed};
use dsec_proto::runtime::{Empty, OneSandbox, SandboxEnd, SandboxSpec, SandboxStop};
use serde_json::Value;

use super::client::{Client, Said};
use super::node::Node;

fn lease(
    client: &mut Client,
    fence: u64,
    lease_ms: u64,
    on_lost: OnLost,
) -> Result<Empty, WireError> {
    let lease = JobLease {
        job: "train".into(),
        fence,
        lease_ms,
        on_lost,
    };
    client.call("job.lease", &lease)
}

fn of_job(node: &Node) -> SandboxSpec {
    SandboxSpec {
        job: Some("train".into()),
        ..node.spec()
    }
}

fn event(listener: &mut Client, kind: &str) -> Value {
    loop {
        if let Said::Item(item) = listener.hear().expect("an event") {
            if item["type"] == kind {
                return item;
            }
        }
    }
}

fn end_job(client: &mut Client) -> Result<Empty, WireError> {
    let job = OneJob {
        job: "train".into(),
    };
    client.call("job.end", &job)
}

/// A lease that nobody renews ends its job's sandboxes, those of no job live on; without one none can be made.
#[test]
fn a_lease_ends_its_sandboxes() {
    let node = Node::start();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    let refused = client.create(&of_job(&node)).expect_err("has no lease");
    assert_eq!(
        (refused.code.as_str(), refused.phase.as_deref()),
        ("conflict", Some("job"))
    );
    lease(&mut client, 7, 3_000, OnLost::Stop).expect("is leased");
    let member = of_job(&node);
    client.create(&member).expect("is made");
    let other = node.sandbox(&mut client);
    let ended = event(&mut listener, "sandbox.ended");
    assert_eq!(ended["end"]["sandbox_id"], member.sandbox_id.as_str());
    assert_eq!(ended["end"]["cause"], "lease");
    assert_eq!(client.sh(&other, "echo lives").1.stdout(), "lives\n");
    client.create(&of_job(&node)).expect_err("is over");
    lease(&mut client, 7, 60_000, OnLost::Stop).expect("begins anew");
    let late = of_job(&node);
    client.create(&late).expect("is made");
    end_job(&mut client).expect_err("one lives");
    client.stop(&late.sandbox_id);
    end_job(&mut client).expect("has ended");
    end_job(&mut client).expect("is harmless");
    node.down();
}

/// A smaller number than the one that is known is refused, and changes nothing; a larger one takes over.
#[test]
fn numbers_fence() {
    let node = Node::start();
    let mut client = node.client();
    lease(&mut client, 7, 60_000, OnLost::Stop).expect("is leased");
    lease(&mut client, 9, 60_000, OnLost::Stop).expect("takes over");
    let refused = lease(&mut client, 8, 1, OnLost::Stop).expect_err("is fenced");
    assert_eq!(
        (
            refused.code.as_str(),
            refused.fault.as_str(),
            refused.retryable
        ),
        ("fenced", "caller", false)
    );
    let member = of_job(&node);
    client.create(&member).expect("the lease stands");
    node.kill_runtime();
    let mut client = node.client();
    let refused = lease(&mut client, 8, 1, OnLost::Stop).expect_err("is fenced");
    assert_eq!(refused.code, "fenced");
    client.stop(&member.sandbox_id);
    node.down();
}

/// A runtime that died meanwhile carries out what its successor finds due.
#[test]
fn a_successor_continues_the_lease() {
    let node = Node::start();
    let mut client = node.client();
    lease(&mut client, 7, 3_000, OnLost::Stop).expect("is leased");
    let member = of_job(&node);
    client.create(&member).expect("is made");
    node.kill_runtime();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    let cause = || -> Option<String> {
        let found = client.list().sandboxes;
        let one = found
            .iter()
            .find(|one| one.sandbox_id == member.sandbox_id)?;
        Some(one.end.as_ref()?.cause.clone())
    };
    // It may have ended before the listener was there.
    let mut cause = cause;
    let cause = cause().unwrap_or_else(|| {
        event(&mut listener, "sandbox.ended")["end"]["cause"]
            .as_str()
            .expect("a cause")
            .to_owned()
    });
    assert_eq!(cause, "lease");
    node.down();
}

/// A job that pauses: its sandboxes stand still, what enters one resumes it, and a successor does not pause it again.
#[test]
fn a_lost_job_can_pause() {
    let node = Node::start();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    lease(&mut client, 7, 3_000, OnLost::Pause).expect("is leased");
    let member = of_job(&node);
    client.create(&member).expect("is made");
    let paused = event(&mut listener, "sandbox.paused");
    assert_eq!(
        (&paused["cause"], &paused["whole"]),
        (&"lease".into(), &true.into())
    );
    let is_paused = |client: &mut Client| client.list().sandboxes[0].paused;
    assert!(is_paused(&mut client));
    assert_eq!(client.sh(&member.sandbox_id, "echo on").1.stdout(), "on\n");
    assert!(!is_paused(&mut client));
    node.kill_runtime();
    let mut client = node.client();
    assert_eq!(client.sh(&member.sandbox_id, "echo on").1.stdout(), "on\n");
    assert!(!is_paused(&mut client));
    client.stop(&member.sandbox_id);
    node.down();
}

/// Freezing and thawing say what they found; a frozen sandbox dies of a stop.
#[test]
fn freeze_and_thaw() {
    let node = Node::start();
    let mut client = node.client();
    let sandbox = node.sandbox(&mut client);
    let freeze = SandboxFreeze {
        sandbox_id: sandbox.clone(),
        cause: "paused".into(),
    };
    let one = OneSandbox {
        sandbox_id: sandbox.clone(),
    };
    for _ in 0..2 {
        let frozen: Frozen = client.call("sandbox.freeze", &freeze).expect("freezes");
        assert!(frozen.paused && frozen.whole);
    }
    for resumed in [true, false] {
        let thawed: Thawed = client.call("sandbox.thaw", &one).expect("thaws");
        assert_eq!(thawed.resumed, resumed);
    }
    let _: Frozen = client.call("sandbox.freeze", &freeze).expect("freezes");
    assert_eq!(client.stop(&sandbox).proof.processes, 0);
    let gone = client
        .call::<Frozen>("sandbox.freeze", &freeze)
        .expect_err("is gone");
    assert_eq!(gone.code, "sandbox_gone");
    node.down();
}

/// A kept disk is copied as often as asked, over its own layers only, and goes when its time is over.
#[test]
fn kept_disks() {
    let node = Node::start();
    let (mut client, mut listener) = (node.client(), node.client());
    listener.open("events", &Empty {});
    let sandbox = node.sandbox(&mut client);
    client.sh(&sandbox, "echo kept > /note");
    let stop = SandboxStop {
        sandbox_id: sandbox.clone(),
        cause: "stopped".into(),
        actor: "test".into(),
        grace_ms: 0,
        keep_ms: Some(3000),
    };
    let end: SandboxEnd = client.call("sandbox.stop", &stop).expect("stops");
    assert!(end.kept_until.is_some_and(|until| until > end.ended_at));
    client.forget(&sandbox);
    let copy = SandboxSpec {
        from_disk: Some(sandbox.clone()),
        ..node.spec()
    };
    client.create(&copy).expect("is made");
    assert_eq!(
        client.sh(&copy.sandbox_id, "cat /note").1.stdout(),
        "kept\n"
    );
    client.stop(&copy.sandbox_id);
    let mut wrong = SandboxSpec {
        from_disk: Some(sandbox.clone()),
        ..node.spec()
    };
    wrong.layers.push("0".repeat(64));
    let refused = client.create(&wrong).expect_err("has other layers");
    assert_eq!(
        (refused.code.as_str(), refused.phase.as_deref()),
        ("conflict", Some("disk"))
    );
    assert_eq!(
        event(&mut listener, "disk.removed")["sandbox_id"],
        sandbox.as_str()
    );
    let left: DiskList = client.call("disk.list", &Empty {}).expect("lists");
    assert!(left.disks.is_empty());
    let late = SandboxSpec {
        from_disk: Some(sandbox),
        ..node.spec()
    };
    assert_eq!(client.create(&late).expect_err("is gone").code, "not_found");
    node.down();
}
