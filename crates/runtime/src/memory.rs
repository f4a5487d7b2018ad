//! How much memory sandboxes have for how long: the kernel knows what is charged now and the most, not the sum.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::node::Node;
use crate::sandbox::Sandbox;

/// Between two samples of a sandbox.
const EVERY: Duration = Duration::from_secs(10);
/// Sandboxes sampled without letting anything else run.
const AT_ONCE: usize = 64;

/// Bytes × nanoseconds up to the last sample. A successor begins with what it finds, for the time since the start.
#[derive(Debug, Default)]
pub struct Integral {
    total: Cell<u128>,
    at: Cell<u64>,
}

impl Integral {
    /// Memory is counted from this time on.
    pub fn begin(&self, at: u64) {
        self.at.set(at);
    }

    /// So much is charged now.
    pub fn sample(&self, now: u64, bytes: u64) {
        let passed = now.saturating_sub(self.at.replace(now));
        self.total
            .set(self.total.get() + u128::from(bytes) * u128::from(passed));
    }

    /// Bytes × seconds.
    #[must_use]
    pub fn byte_s(&self) -> u64 {
        u64::try_from(self.total.get() / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

/// Samples all sandboxes for as long as the runtime serves.
pub async fn run(node: Rc<Node>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let all: Vec<Rc<Sandbox>> = node.sandboxes.borrow().values().cloned().collect();
        for some in all.chunks(AT_ONCE) {
            some.iter()
                .filter(|sandbox| sandbox.gone().is_none())
                .for_each(|sandbox| sandbox.sample());
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Integral;

    /// Each sample counts for the time since the one before.
    #[test]
    fn samples_add_up() {
        let memory = Integral::default();
        memory.begin(1_000_000_000);
        memory.sample(3_000_000_000, 100);
        memory.sample(4_000_000_000, 50);
        memory.sample(4_000_000_000, 1 << 40);
        assert_eq!(memory.byte_s(), 250);
    }
}
