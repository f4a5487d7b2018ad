//! Leases of jobs. One that is not renewed in time ends (or pauses) the sandboxes of its job, whatever else is dead.

use std::rc::Rc;

use dsec_fault::fault;
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::holding::{JobLease, OnLost, OneJob, SandboxFreeze};
use dsec_proto::keeper::Call;
use dsec_proto::runtime::RuntimeEvent;

use crate::kernel::sys;
use crate::node::Node;
use crate::sandbox::{self, Sandbox};
use crate::tag::{job_object, JobTag, Tag};
use crate::timers::Timer;
use crate::{check, pause};

/// `job.lease`: the lease lasts from now on for so long. Answers once a successor of this runtime would know it.
///
/// # Errors
/// `fenced` when a newer holder is known.
pub async fn lease(node: &Rc<Node>, asked: JobLease) -> WireResult<()> {
    check::lease(&asked)?;
    let known = node.jobs.borrow().get(&asked.job).map(|job| job.fence);
    if known.is_some_and(|fence| fence > asked.fence) {
        return Err(WireError::new(
            "fenced",
            format!("job {} has a newer holder", asked.job),
        ));
    }
    let tag = JobTag {
        job: asked.job.clone(),
        fence: asked.fence,
        lease_at: sys::boottime() + asked.lease_ms * 1_000_000,
        on_lost: asked.on_lost,
        lost: false,
    };
    node.set_timer(Timer::Lease(asked.job.clone()), tag.lease_at);
    node.jobs.borrow_mut().insert(asked.job, tag.clone());
    fault!("runtime.lease.noted");
    keep(node, tag).await?;
    fault!("runtime.lease.kept");
    Ok(())
}

async fn keep(node: &Node, tag: JobTag) -> WireResult<()> {
    let object_id = job_object(&tag.job);
    let tag = Tag::Job(tag)
        .encode()
        .map_err(|error| WireError::node("tag", error))?;
    let call = Call::Put {
        object_id,
        tag,
        held: Vec::new(),
    };
    node.keeper
        .tell(call, &[])
        .await
        .map_err(|refusal| WireError::node("lease", refusal.message))
}

/// `job.end`: no lease any more. Harmless when there is none.
///
/// # Errors
/// `conflict` while a sandbox of the job lives.
pub async fn end(node: &Rc<Node>, asked: OneJob) -> WireResult<()> {
    check::job(&asked.job)?;
    let live = members(node, &asked.job)
        .into_iter()
        .find(|one| one.gone().is_none());
    if let Some(live) = live {
        return Err(
            WireError::new("conflict", format!("{} belongs to the job", live.id)).about(&live.id),
        );
    }
    fault!("runtime.release.asked");
    node.jobs.borrow_mut().remove(&asked.job);
    node.cancel_timer(&Timer::Lease(asked.job.clone()));
    node.keeper.ack(vec![job_object(&asked.job)]).await;
    fault!("runtime.release.forgotten");
    Ok(())
}

/// Refuses a sandbox of a job that has no lease.
///
/// # Errors
/// `conflict`.
pub fn check_leased(node: &Node, job: Option<&str>) -> WireResult<()> {
    let Some(job) = job else { return Ok(()) };
    let leased = node
        .jobs
        .borrow()
        .get(job)
        .is_some_and(|job| job.lease_at > sys::boottime());
    if leased {
        Ok(())
    } else {
        Err(WireError::new("conflict", format!("job {job} has no lease")).in_phase("job"))
    }
}

/// A sandbox has just been made: the lease may have ended meanwhile.
pub fn joined(node: &Rc<Node>, sandbox: &Rc<Sandbox>) {
    let job = sandbox.tag.borrow().job.clone();
    if check_leased(node, job.as_deref()).is_err() {
        sandbox::end(node, sandbox, "lease");
    }
}

/// The time of a lease has come.
pub fn over(node: &Rc<Node>, job: &str, now: u64) {
    let Some(tag) = node.jobs.borrow().get(job).cloned() else {
        return;
    };
    if tag.lease_at > now {
        node.set_timer(Timer::Lease(job.into()), tag.lease_at);
        return;
    }
    // A pause that was carried out once is not repeated by a successor: its sandboxes may have been resumed since.
    let done = tag.lost && tag.on_lost == OnLost::Pause;
    if !done {
        tracing::warn!(job, fence = tag.fence, "the lease is over");
        fault!("runtime.expire.due");
        members(node, job)
            .iter()
            .for_each(|one| lose(node, one, tag.on_lost));
        node.tell(RuntimeEvent::JobLost {
            job: job.into(),
            fence: tag.fence,
            at: sys::unix_time(now),
        });
        fault!("runtime.expire.told");
        let lost = JobTag { lost: true, ..tag };
        node.jobs.borrow_mut().insert(job.into(), lost.clone());
        let node = Rc::clone(node);
        tokio::task::spawn_local(async move {
            if let Err(error) = keep(&node, lost).await {
                tracing::error!("{}", error.message);
            }
            fault!("runtime.expire.kept");
        });
    }
}

fn lose(node: &Rc<Node>, sandbox: &Rc<Sandbox>, on_lost: OnLost) {
    if on_lost == OnLost::Stop {
        return sandbox::end(node, sandbox, "lease");
    }
    let (node, sandbox) = (Rc::clone(node), Rc::clone(sandbox));
    tokio::task::spawn_local(async move {
        let freeze = SandboxFreeze {
            sandbox_id: sandbox.id.clone(),
            cause: "lease".into(),
        };
        if let Err(error) = pause::freeze(&node, freeze).await {
            // What cannot be paused is not left to run on; what has ended stays so.
            tracing::error!(sandbox_id = sandbox.id, "{}", error.message);
            sandbox::end(&node, &sandbox, "lease");
        }
    });
}

fn members(node: &Node, job: &str) -> Vec<Rc<Sandbox>> {
    let of_job = |sandbox: &&Rc<Sandbox>| sandbox.tag.borrow().job.as_deref() == Some(job);
    node.sandboxes
        .borrow()
        .values()
        .filter(of_job)
        .cloned()
        .collect()
}

/// Takes up a lease that a former runtime left.
pub fn take_up(node: &Node, tag: JobTag) {
    node.set_timer(Timer::Lease(tag.job.clone()), tag.lease_at);
    node.jobs.borrow_mut().insert(tag.job.clone(), tag);
}
