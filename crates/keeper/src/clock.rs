//! CLOCK_BOOTTIME, the one clock of the node.

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds since boot, sleep included.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
