//! What an endpoint has done and may still do.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use dsec_proto::net::EndpointCount;

/// Counters of one endpoint.
#[derive(Default)]
pub struct Counters {
    /// All but the open connections, which are counted beside.
    counted: RefCell<EndpointCount>,
    connections: Cell<u32>,
    changed: Cell<bool>,
}

impl Counters {
    /// What was counted before this process; more than that stands.
    pub fn begin_at(&self, before: &EndpointCount) {
        let mut counted = self.counted.borrow_mut();
        counted.requests = counted.requests.max(before.requests);
        counted.refused = counted.refused.max(before.refused);
        counted.sent_bytes = counted.sent_bytes.max(before.sent_bytes);
        counted.received_bytes = counted.received_bytes.max(before.received_bytes);
    }

    /// Counts something.
    pub fn add(&self, change: impl FnOnce(&mut EndpointCount)) {
        change(&mut self.counted.borrow_mut());
        self.changed.set(true);
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.connections.get()
    }

    /// A connection more or less.
    pub fn connected(&self, change: i32) {
        self.connections
            .set(self.connections.get().saturating_add_signed(change));
        self.changed.set(true);
    }

    /// Bytes of bodies, both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let counted = self.counted.borrow();
        counted.sent_bytes.saturating_add(counted.received_bytes)
    }

    /// All of it.
    #[must_use]
    pub fn now(&self) -> EndpointCount {
        EndpointCount {
            connections: self.connections.get(),
            ..self.counted.borrow().clone()
        }
    }

    /// Whether anything changed since this was asked.
    pub fn take_changed(&self) -> bool {
        self.changed.replace(false)
    }
}

/// Lets through so many in a minute, evenly, after a burst of as many.
pub struct Rate {
    left: f64,
    since: Instant,
}

impl Rate {
    /// One that is full.
    #[must_use]
    pub fn new(per_minute: u32, now: Instant) -> Self {
        Self {
            left: f64::from(per_minute),
            since: now,
        }
    }

    /// Whether one more may go.
    pub fn take(&mut self, per_minute: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        let most = f64::from(per_minute);
        self.left = (self.left + passed * most / 60.0).min(most);
        self.since = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A burst of a minute's worth passes, then one every so often.
    #[test]
    fn rate() {
        let begun = Instant::now();
        let mut rate = Rate::new(60, begun);
        assert_eq!((0..100).filter(|_| rate.take(60, begun)).count(), 60);
        assert!(!rate.take(60, begun + Duration::from_millis(900)));
        assert!(rate.take(60, begun + Duration::from_millis(1900)));
        assert!(!rate.take(60, begun + Duration::from_millis(1900)));
    }

    /// A successor goes on from what its predecessor had reported.
    #[test]
    fn counts_go_on() {
        let counters = Counters::default();
        counters.add(|count| count.requests += 2);
        counters.begin_at(&EndpointCount {
            requests: 10,
            sent_bytes: 7,
            ..EndpointCount::default()
        });
        counters.add(|count| count.requests += 1);
        assert_eq!((counters.now().requests, counters.bytes()), (11, 7));
    }
}
