//! Refused calls of note: every exec's filter has a listener, and a thread of its own gives all of them the one answer.
//!
//! The keeper holds each listener beside the exec's pipes, so that the death of the runtime lets calls wait and loses
//! none. A sandbox whose programs call more often than [`PER_SECOND`] waits for its answers: it is slowed down, and
//! nobody else.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dsec_proto::audit::AuditKind;
use tokio::sync::mpsc;

use super::{note, Counter, What};
use crate::exec::{self, Exec};
use crate::kernel::notify::{self, Set};
use crate::kernel::seccomp::{noted, Noted};
use crate::node::Node;

/// Answers that a sandbox gets in a second, and at once after a pause.
const PER_SECOND: u32 = 200;
const AT_ONCE: u32 = 400;
/// Calls that were answered and are not noted yet; of more, only how many they were is told, with the next.
const UNNOTED: usize = 4096;

/// How many answers a sandbox still gets.
#[derive(Debug)]
pub struct Budget(Mutex<(u32, Instant)>);

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new((AT_ONCE, Instant::now())))
    }
}

impl Budget {
    /// Takes one, or says how long there is none.
    fn take(&self, now: Instant) -> Result<(), Duration> {
        let one = Duration::from_secs(1) / PER_SECOND;
        let mut budget = locked(&self.0);
        let passed = now.saturating_duration_since(budget.1);
        let more = (passed.as_nanos() / one.as_nanos()).min(u128::from(AT_ONCE)) as u32;
        if budget.0 + more >= AT_ONCE {
            *budget = (AT_ONCE, now);
        } else if more > 0 {
            budget.0 += more;
            budget.1 += one * more;
        }
        if budget.0 == 0 {
            return Err(one.saturating_sub(now.saturating_duration_since(budget.1)));
        }
        budget.0 -= 1;
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Listener {
    fd: Arc<OwnedFd>,
    budget: Arc<Budget>,
    /// Calls that were answered while there was no room to tell of them.
    untold: Arc<AtomicU64>,
}

/// What was answered: of which listener, and how often.
type Told = (u64, Noted, u64);

/// What both threads know.
struct Shared {
    set: Set,
    listeners: Mutex<HashMap<u64, Listener>>,
}

impl Shared {
    fn find(&self, key: u64) -> Option<Listener> {
        locked(&self.listeners).get(&key).cloned()
    }

    fn remove(&self, key: u64) {
        if let Some(gone) = locked(&self.listeners).remove(&key) {
            self.set.remove(&*gone.fd);
        }
    }
}

/// All listeners of the node.
pub struct Calls {
    shared: Arc<Shared>,
    next: std::cell::Cell<u64>,
    execs: std::cell::RefCell<HashMap<u64, Weak<Exec>>>,
    answered: std::cell::RefCell<mpsc::Receiver<Told>>,
}

impl Calls {
    /// Begins to answer. `None` where filters cannot have listeners: nothing is on record then, and as much refused.
    ///
    /// # Errors
    /// The errno.
    pub fn begin() -> io::Result<Option<Self>> {
        if let Err(error) = notify::can_listen() {
            tracing::warn!("refused calls are not on record: {error}");
            return Ok(None);
        }
        let (sender, answered) = mpsc::channel(UNNOTED);
        let shared = Arc::new(Shared {
            set: Set::new()?,
            listeners: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("calls".into())
            .spawn(move || answer_all(&theirs, &sender))?;
        Ok(Some(Self {
            shared,
            next: Default::default(),
            execs: Default::default(),
            answered: answered.into(),
        }))
    }

    /// Answers what the programs of an exec call from now on.
    pub fn add(&self, exec: &Rc<Exec>, listener: OwnedFd) {
        let key = self.next.replace(self.next.get() + 1);
        let fd = Arc::new(listener);
        let known = Listener {
            fd: Arc::clone(&fd),
            budget: Arc::clone(&exec.sandbox.calls),
            untold: Arc::default(),
        };
        locked(&self.shared.listeners).insert(key, known);
        if let Err(error) = self.shared.set.add(&*fd, key) {
            tracing::error!(exec_id = exec.id, "its calls cannot be answered: {error}");
        }
        self.execs.borrow_mut().insert(key, Rc::downgrade(exec));
        exec.listener.set(Some(key));
    }

    /// Nothing of an exec is left, or it is the sandbox's own affair now.
    pub fn remove(&self, exec: &Exec) {
        if let Some(key) = exec.listener.take() {
            self.shared.remove(key);
            self.execs.borrow_mut().remove(&key);
        }
    }

    fn taken(&self) -> Option<Told> {
        self.answered.borrow_mut().try_recv().ok()
    }
}

/// The thread: takes a call, tells of it, answers it.
fn answer_all(shared: &Shared, sender: &mpsc::Sender<Told>) {
    let mut resting: Vec<(Instant, u64)> = Vec::new();
    loop {
        let soonest = resting.iter().map(|(at, _)| *at).min();
        let wait = soonest.map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now());
            left.as_millis().min(1000) as i32 + 1
        });
        let ready = match shared.set.wait(wait) {
            Ok(ready) => ready,
            Err(error) => return tracing::error!("refused calls are no longer answered: {error}"),
        };
        let now = Instant::now();
        resting.retain(|(at, key)| {
            let rests = *at > now;
            if let Some(found) = (!rests).then(|| shared.find(*key)).flatten() {
                let _ = shared.set.arm(&*found.fd, *key, true);
            }
            rests
        });
        for each in ready {
            let Some(listener) = shared.find(each.key) else {
                continue;
            };
            if !each.waits {
                // The last process that it was about is gone.
                shared.remove(each.key);
            } else if let Err(pause) = listener.budget.take(now) {
                let _ = shared.set.arm(&*listener.fd, each.key, false);
                resting.push((now + pause, each.key));
            } else if !answer(&listener, each.key, sender) {
                shared.remove(each.key);
            }
        }
    }
}

/// False when there is nothing more to come of it, or nobody to tell.
fn answer(listener: &Listener, key: u64, sender: &mpsc::Sender<Told>) -> bool {
    let fd = &*listener.fd;
    match notify::receive(fd) {
        Ok(Some(call)) => {
            // First, so that whoever has seen the refusal finds it on record.
            let noted = noted(call.number, call.arguments);
            let goes_on = tell(sender, &listener.untold, key, noted);
            notify::refuse(fd, &call);
            goes_on
        }
        Ok(None) => true,
        Err(error) => {
            tracing::error!("a listener fails: {error}");
            false
        }
    }
}

/// False when there is nobody to tell. It never waits: a call that was taken is lost to the next runtime, and nobody
/// would answer it if this one died before it does. Without room it is counted for the exec's next one that has some.
fn tell(sender: &mpsc::Sender<Told>, untold: &AtomicU64, key: u64, noted: Noted) -> bool {
    match sender.try_reserve() {
        Ok(room) => {
            room.send((key, noted, 1 + untold.swap(0, Ordering::Relaxed)));
            true
        }
        Err(mpsc::error::TrySendError::Full(())) => {
            untold.fetch_add(1, Ordering::Relaxed);
            true
        }
        Err(mpsc::error::TrySendError::Closed(())) => false,
    }
}

/// Notes what was answered so far.
pub fn drain(node: &Node) {
    let Some(calls) = &node.calls else { return };
    while let Some(told) = calls.taken() {
        of(node, calls, told);
    }
}

fn of(node: &Node, calls: &Calls, (key, noted, count): Told) {
    let exec = calls.execs.borrow().get(&key).and_then(Weak::upgrade);
    if let Some(exec) = exec {
        let what = What {
            kind: AuditKind::Syscall,
            reason: noted.reason,
            name: Some(noted.name.into()),
            exec_id: Some(exec::id_of_run(&exec)),
            counter: Counter::None,
        };
        note(node, &exec.sandbox, what, count);
    }
}

/// Notes what is answered, for as long as the runtime serves.
pub async fn run(node: Rc<Node>) {
    let Some(calls) = &node.calls else { return };
    while let Some(told) = next(calls).await {
        of(&node, calls, told);
    }
}

async fn next(calls: &Calls) -> Option<Told> {
    std::future::poll_fn(|context| calls.answered.borrow_mut().poll_recv(context)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without room to tell of a call it is told with the next one of its listener, and none is waited for.
    #[test]
    fn untold() {
        let (sender, mut told) = mpsc::channel(1);
        let (one, other) = (AtomicU64::new(0), AtomicU64::new(0));
        let tell = |untold, key| tell(&sender, untold, key, noted(0, [0; 6]));
        let mut next = || told.try_recv().ok().map(|(key, _, count)| (key, count));
        assert!(tell(&one, 1) && tell(&one, 1) && tell(&one, 1) && tell(&other, 2));
        assert_eq!(next(), Some((1, 1)));
        assert!(tell(&one, 1));
        assert_eq!((next(), next()), (Some((1, 3)), None));
        drop(told);
        assert!(!tell(&other, 2));
    }

    /// After what is given at once there are so many in a second, however long nothing was asked for before.
    #[test]
    fn budget() {
        let budget = Budget::default();
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let taken = |at| {
            std::iter::repeat_with(|| budget.take(at))
                .take_while(Result::is_ok)
                .count()
        };
        assert_eq!(taken(at(60_000)), AT_ONCE as usize);
        assert!(budget.take(at(60_000)).expect_err("there is none") <= Duration::from_millis(5));
        assert_eq!(taken(at(60_100)), PER_SECOND as usize / 10);
        assert_eq!(taken(at(61_100)), PER_SECOND as usize);
        assert_eq!(taken(at(90_000)), AT_ONCE as usize);
    }
}
