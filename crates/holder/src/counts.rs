//! What is counted, and the clock it is counted by.

use dsec_proto::loading::{Fetched, LoadingCounts};
use dsec_proto::times::Times;
use rustix::time::{clock_gettime, ClockId};

/// CLOCK_BOOTTIME, nanoseconds: the same for a successor, and nobody sets it.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Counters of a layer, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Reads whose range was there.
    pub hits: u64,
    /// Reads that ended with an I/O error.
    pub errors: u64,
    /// How long the others waited.
    pub waits: Times,
    fetched: Fetched,
}

impl Tally {
    /// The fetcher has done this.
    pub fn fetched(&mut self, more: &Fetched) {
        let own = &mut self.fetched;
        for (own, more) in [
            (&mut own.requests, more.requests),
            (&mut own.retries, more.retries),
            (&mut own.stored_bytes, more.stored_bytes),
            (&mut own.fetched_bytes, more.fetched_bytes),
            (&mut own.corrupt, more.corrupt),
            (&mut own.failed, more.failed),
        ] {
            *own = own.saturating_add(more);
        }
        own.took.merge(&more.took);
    }

    /// As they are told.
    #[must_use]
    pub fn counts(&self, waiting: u64) -> LoadingCounts {
        let fetched = &self.fetched;
        LoadingCounts {
            hits: self.hits,
            misses: self.waits.count(),
            errors: self.errors,
            waiting,
            wait_p50_us: self.waits.quantile_us(500),
            wait_p99_us: self.waits.quantile_us(990),
            wait_total_us: self.waits.total_us,
            requests: fetched.requests,
            retries: fetched.retries,
            stored_bytes: fetched.stored_bytes,
            fetched_bytes: fetched.fetched_bytes,
            corrupt: fetched.corrupt,
            failed: fetched.failed,
            fetch_p50_us: fetched.took.quantile_us(500),
            fetch_p99_us: fetched.took.quantile_us(990),
            fetch_total_us: fetched.took.total_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a fetcher says adds up, whatever it says.
    #[test]
    fn adds_up() {
        let mut tally = Tally::default();
        let mut more = Fetched {
            requests: 2,
            corrupt: u64::MAX,
            ..Fetched::default()
        };
        more.took.add(1000);
        tally.waits.add(3000);
        tally.fetched(&more);
        tally.fetched(&more);
        let counts = tally.counts(7);
        assert_eq!((counts.requests, counts.corrupt), (4, u64::MAX));
        assert_eq!((counts.fetch_total_us, counts.misses), (2000, 1));
        assert_eq!(counts.waiting, 7);
    }
}
