//! What all finished execs together may keep. Pure.

use std::collections::VecDeque;

use super::TAIL;

/// Counts what is kept of finished execs, oldest first.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    kept: u64,
    finished: VecDeque<(String, u64)>,
}

impl Budget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            kept: 0,
            finished: VecDeque::new(),
        }
    }

    /// An exec has finished with so many bytes kept. Returns the execs that now have to shrink to their tails.
    pub fn finish(&mut self, exec_id: &str, bytes: u64) -> Vec<String> {
        // What shrinking cannot make smaller does not count: it would only push out what can be.
        let more = bytes.saturating_sub(2 * TAIL);
        if more == 0 {
            return Vec::new();
        }
        self.finished.push_back((exec_id.into(), more));
        self.kept += more;
        let mut shrinking = Vec::new();
        while self.kept > self.limit {
            let Some((exec_id, bytes)) = self.finished.pop_front() else {
                break;
            };
            self.kept -= bytes;
            shrinking.push(exec_id);
        }
        shrinking
    }

    /// These are gone, or have shrunk for another reason.
    pub fn forget(&mut self, exec_ids: &[String]) {
        self.finished
            .retain(|(exec_id, _)| !exec_ids.contains(exec_id));
        self.kept = self.finished.iter().map(|(_, bytes)| bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The oldest shrink first, and no more of them than it takes.
    #[test]
    fn oldest_shrink_first() {
        let mut budget = Budget::new(10 * MIB);
        assert_eq!(budget.finish("a", 4 * MIB), Vec::<String>::new());
        assert_eq!(budget.finish("b", 4 * MIB), Vec::<String>::new());
        assert_eq!(budget.finish("c", 4 * MIB), ["a"]);
        assert_eq!(budget.finish("d", 20 * MIB), ["b", "c", "d"]);
        assert_eq!(budget.finish("e", 4 * MIB), Vec::<String>::new());
    }

    /// Short output is never in the way, and what is forgotten makes room.
    #[test]
    fn short_and_forgotten_do_not_count() {
        let mut budget = Budget::new(10 * MIB);
        for number in 0..10_000 {
            assert!(budget.finish(&number.to_string(), 2 * TAIL).is_empty());
        }
        budget.finish("a", 9 * MIB);
        budget.forget(&["a".into()]);
        assert!(budget.finish("b", 9 * MIB).is_empty());
    }
}
