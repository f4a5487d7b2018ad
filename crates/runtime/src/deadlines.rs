//! The one timer of the node: it sleeps until the earliest deadline and hands out what is due.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use tokio::io::Interest;

use crate::kernel::poll;
use crate::kernel::sys::{self, check, owned};
use crate::node::Node;
use crate::timers::Timer;
use crate::{disks, exec, jobs, sandbox, session, snapshots};

/// Runs for as long as the node does.
pub async fn run(node: Rc<Node>) {
    if let Err(error) = watch(&node).await {
        // Without it no deadline would ever come: the keeper starts a runtime that has one.
        tracing::error!("the timer failed: {error}");
        std::process::abort();
    }
}

async fn watch(node: &Rc<Node>) -> io::Result<()> {
    // SAFETY: plain numbers.
    let timer = owned(libc::c_long::from(unsafe {
        libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
    }))?;
    let timer = poll::watch(timer, Interest::READABLE)?;
    loop {
        let mut changed = std::pin::pin!(node.timers_changed.notified());
        changed.as_mut().enable();
        arm(timer.get_ref(), node.timers.borrow().next())?;
        tokio::select! {
            ready = timer.ready(Interest::READABLE) => ready?.clear_ready(),
            () = changed => {}
        }
        let now = sys::boottime();
        loop {
            let due = node.timers.borrow_mut().due(now);
            match due {
                Some(timer) => fire(node, timer, now),
                None => break,
            }
        }
    }
}

/// Sets the kernel's timer to an absolute time, or off.
fn arm(timer: &OwnedFd, at: Option<u64>) -> io::Result<()> {
    let at = at.map_or(0, |at| at.max(1));
    let once = libc::timespec {
        tv_sec: (at / 1_000_000_000) as i64,
        tv_nsec: (at % 1_000_000_000) as i64,
    };
    let setting = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: once,
    };
    // SAFETY: a valid structure, the old value is not asked for.
    let set = unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &setting,
            std::ptr::null_mut(),
        )
    };
    check(libc::c_long::from(set)).map(drop)
}

fn fire(node: &Rc<Node>, timer: Timer, now: u64) {
    let found = |id: &str| node.sandboxes.borrow().get(id).cloned();
    match timer {
        Timer::Timeout(exec_id) => exec::out_of_time(node, &exec_id),
        Timer::Grace(exec_id) => exec::out_of_grace(node, &exec_id),
        Timer::RunTimeout(exec_id) => session::out_of_time(node, &exec_id),
        Timer::RunGrace(exec_id) => session::out_of_grace(node, &exec_id),
        Timer::Lifetime(id) => {
            if let Some(sandbox) = found(&id) {
                sandbox::end(node, &sandbox, "lifetime");
            }
        }
        Timer::Idle(id) => {
            let Some(sandbox) = found(&id) else { return };
            match sandbox.idle_at() {
                Some(at) if at > now => node.set_timer(Timer::Idle(id), at),
                Some(_) => sandbox::end(node, &sandbox, "idle"),
                None => {}
            }
        }
        Timer::Lease(job) => jobs::over(node, &job, now),
        Timer::Disk(id) => disks::over(node, id),
        Timer::Snapshot(id) => snapshots::over(node, id),
    }
}
