//! What is counted, and the clock it is counted by.

use dsec_proto::loading::Counts;
use rustix::time::{clock_gettime, ClockId};

/// Classes of waits: less than 1 ms, 2 ms, … 32 s, and all others.
const CLASSES: usize = 17;

/// CLOCK_BOOTTIME, nanoseconds: the same for a successor.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Which class a wait belongs to.
fn class(waited_ns: u64) -> usize {
    let ms = waited_ns / 1_000_000;
    (u64::BITS - ms.leading_zeros()).min(CLASSES as u32 - 1) as usize
}

/// A miss that came to its end.
pub fn waited(counts: &mut Counts, waited_ns: u64) {
    counts.misses += 1;
    counts.waits.resize(CLASSES, 0);
    counts.waits[class(waited_ns)] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Class N holds what took less than 2^N ms and no less than half of it.
    #[test]
    fn classes() {
        let of = |ms: u64| class(ms * 1_000_000);
        assert_eq!((of(0), of(1), of(2), of(3), of(4)), (0, 1, 2, 2, 3));
        assert_eq!(
            (of(32_767), of(32_768), of(u64::MAX / 1_000_000)),
            (15, 16, 16)
        );
    }
}
