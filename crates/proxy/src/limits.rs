//! What an endpoint has done and may still do.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Instant;

use dsec_proto::net::{EndpointCount, LEDGER_BYTES};

/// Counters of one endpoint. Each count is in the ledger before it is acted on, so that a successor goes on from there.
#[derive(Default)]
pub struct Counters {
    /// All but the open connections, which are counted beside.
    counted: RefCell<EndpointCount>,
    connections: Cell<u32>,
    /// The ledger, and where in it.
    ledger: Option<(Rc<File>, u64)>,
}

impl Counters {
    /// Those of the endpoint with this index, as they stand in the ledger.
    #[must_use]
    pub fn in_ledger(ledger: Rc<File>, index: usize) -> Self {
        let at = (index * LEDGER_BYTES) as u64;
        let mut bytes = [0; LEDGER_BYTES];
        if let Err(error) = ledger.read_exact_at(&mut bytes, at) {
            tracing::error!("what an endpoint has done cannot be read: {error}");
        }
        Self {
            counted: EndpointCount::from_ledger(&bytes).into(),
            connections: Cell::default(),
            ledger: Some((ledger, at)),
        }
    }

    /// Counts something.
    pub fn add(&self, change: impl FnOnce(&mut EndpointCount)) {
        let mut counted = self.counted.borrow_mut();
        change(&mut counted);
        if let Some((ledger, at)) = &self.ledger {
            if let Err(error) = ledger.write_all_at(&counted.to_ledger(), *at) {
                tracing::error!("what an endpoint has done cannot be noted: {error}");
            }
        }
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
    }

    /// Bytes of bodies, both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let counted = self.counted.borrow();
        counted.sent_bytes.saturating_add(counted.received_bytes)
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

    /// A successor goes on from what its predecessor has counted, each endpoint in its own place.
    #[test]
    fn counts_go_on() {
        let path = std::env::temp_dir().join(format!("dsec-ledger-{}", std::process::id()));
        std::fs::write(&path, [0; 2 * LEDGER_BYTES]).expect("is written");
        let open = || {
            Rc::new(
                File::options()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .expect("is opened"),
            )
        };
        for round in 1..3 {
            let ledger = open();
            let other = Counters::in_ledger(Rc::clone(&ledger), 0);
            let counters = Counters::in_ledger(ledger, 1);
            counters.add(|count| count.requests += 2);
            counters.add(|count| count.sent_bytes += 7);
            assert_eq!(counters.counted.borrow().requests, 2 * round);
            assert_eq!((counters.bytes(), other.bytes()), (7 * round, 0));
        }
        std::fs::remove_file(&path).expect("is removed");
    }
}
