//! How long a dead service waits for its next start.

const FIRST_NS: u64 = 50_000_000;
const LONGEST_NS: u64 = 5_000_000_000;
/// A service that lived so long starts from the beginning.
const SOUND_NS: u64 = 10_000_000_000;

/// Doubling delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    last_ns: u64,
}

impl Backoff {
    /// Delay after a life of `lived_ns`.
    pub(crate) fn after(&mut self, lived_ns: u64) -> u64 {
        let doubled = self.last_ns.saturating_mul(2).clamp(FIRST_NS, LONGEST_NS);
        self.last_ns = if lived_ns >= SOUND_NS {
            FIRST_NS
        } else {
            doubled
        };
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;

    /// 50 ms, doubling up to 5 s, and from the start again after 10 s alive.
    #[test]
    fn doubles_and_resets() {
        let mut backoff = Backoff::default();
        let delays: Vec<u64> = (0..9).map(|_| backoff.after(0) / 1_000_000).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(10_000_000_000), 50_000_000);
        assert_eq!(backoff.after(9_999_999_999), 100_000_000);
    }
}
