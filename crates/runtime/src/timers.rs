//! Every deadline of the node. Pure: times come in from outside, CLOCK_BOOTTIME nanoseconds.

use std::collections::{BTreeSet, HashMap};

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// An exec's time is over.
    Timeout(String),
    /// An exec's grace after SIGTERM is over.
    Grace(String),
    /// The time of a session's run is over.
    RunTimeout(String),
    /// The grace of a session's run is over, or the shell's time to come back.
    RunGrace(String),
    /// A sandbox's lifetime is over.
    Lifetime(String),
    /// A sandbox may have been idle for long enough.
    Idle(String),
    /// The lease of a job is over.
    Lease(String),
    /// A disk has been kept for long enough.
    Disk(String),
    /// A snapshot has been kept for long enough.
    Snapshot(String),
}

/// Timers by deadline; one deadline each.
#[derive(Debug, Default)]
pub struct Timers {
    ordered: BTreeSet<(u64, Timer)>,
    deadlines: HashMap<Timer, u64>,
}

impl Timers {
    /// Sets a timer, in place of its former deadline.
    pub fn set(&mut self, timer: Timer, deadline: u64) {
        self.cancel(&timer);
        self.ordered.insert((deadline, timer.clone()));
        self.deadlines.insert(timer, deadline);
    }

    /// Takes a timer away.
    pub fn cancel(&mut self, timer: &Timer) {
        if let Some(deadline) = self.deadlines.remove(timer) {
            self.ordered.remove(&(deadline, timer.clone()));
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.ordered.first().map(|(deadline, _)| *deadline)
    }

    /// Takes out one timer whose deadline has come.
    pub fn due(&mut self, now: u64) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        let (_, timer) = self.ordered.pop_first()?;
        self.deadlines.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(name: &str) -> Timer {
        Timer::Timeout(name.into())
    }

    /// Timers come out in the order of their deadlines, none before its time.
    #[test]
    fn due_in_order() {
        let mut timers = Timers::default();
        timers.set(timeout("late"), 30);
        timers.set(timeout("early"), 10);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(40), Some(timeout("early")));
        assert_eq!(timers.due(40), Some(timeout("late")));
        assert_eq!(timers.due(40), None);
    }

    /// A timer that is set again fires once, at the new time; a cancelled one never.
    #[test]
    fn set_again_and_cancelled() {
        let mut timers = Timers::default();
        timers.set(timeout("moved"), 10);
        timers.set(timeout("moved"), 20);
        timers.set(timeout("cancelled"), 5);
        timers.cancel(&timeout("cancelled"));
        assert_eq!(timers.due(15), None);
        assert_eq!(timers.due(20), Some(timeout("moved")));
        assert_eq!(timers.next(), None);
    }
}
