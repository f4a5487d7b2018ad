//! How long something took, many times: a histogram of four classes for each doubling. Pure.

use serde::{Deserialize, Serialize};

/// Classes: the last one holds everything from 67 s on.
const CLASSES: usize = 104;

/// Counts by class; those after the last that is not zero are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    counts: Vec<u64>,
    /// Microseconds of all together.
    pub total_us: u64,
}

/// Which class so many microseconds belong to.
fn class(us: u64) -> usize {
    let Some(top) = us.checked_ilog2().filter(|top| *top >= 2) else {
        return us as usize;
    };
    let quarter = (us >> (top - 2)) & 3;
    (4 * (top as usize - 1) + quarter as usize).min(CLASSES - 1)
}

/// What a class ends with, exclusive.
fn end_of(class: usize) -> u64 {
    if class < 4 {
        return class as u64 + 1;
    }
    let (top, quarter) = (class / 4 + 1, class as u64 % 4);
    (5 + quarter) << (top - 2)
}

impl Times {
    /// It took so long once more.
    pub fn add(&mut self, us: u64) {
        let class = class(us);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.total_us = self.total_us.saturating_add(us);
    }

    /// All of another's too; classes that there cannot be are left out.
    pub fn merge(&mut self, other: &Self) {
        let counts = &other.counts[..other.counts.len().min(CLASSES)];
        if self.counts.len() < counts.len() {
            self.counts.resize(counts.len(), 0);
        }
        for (own, more) in self.counts.iter_mut().zip(counts) {
            *own = own.saturating_add(*more);
        }
        self.total_us = self.total_us.saturating_add(other.total_us);
    }

    /// How often.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// What so many of a thousand did not exceed, in microseconds, at most a quarter too much; 0 of none.
    #[must_use]
    pub fn quantile_us(&self, of_thousand: u64) -> u64 {
        let count = u128::from(self.count());
        let rank = (count * u128::from(of_thousand)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (class, n) in self.counts.iter().enumerate() {
            seen += u128::from(*n);
            if seen >= rank {
                return end_of(class);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every class follows the one before, and holds what it says.
    #[test]
    fn classes_join() {
        for of in 1..CLASSES - 1 {
            let (from, to) = (end_of(of - 1), end_of(of));
            assert_eq!((class(from), class(to - 1)), (of, of), "{of}");
            assert!(of < 4 || (to - from) * 4 <= from, "a quarter: {of}");
        }
        assert_eq!((class(0), class(u64::MAX)), (0, CLASSES - 1));
    }

    /// Of 100 that took 1 to 100 ms half were through after about 50, and 99 of 100 after about 99.
    #[test]
    fn quantiles() {
        let mut times = Times::default();
        assert_eq!(times.quantile_us(990), 0);
        (1..=100).for_each(|ms| times.add(ms * 1000));
        let (half, most) = (times.quantile_us(500), times.quantile_us(990));
        assert!((50_000..62_500).contains(&half), "{half}");
        assert!((99_000..123_750).contains(&most), "{most}");
        assert_eq!((times.count(), times.total_us), (100, 5_050_000));
    }

    /// Two of them together are what one would be that had seen all; what another says that cannot be changes nothing.
    #[test]
    fn merged() {
        let (mut one, mut two, mut all) = (Times::default(), Times::default(), Times::default());
        for us in [1, 70, 4_000] {
            one.add(us);
            all.add(us);
        }
        for us in [9, 1 << 30] {
            two.add(us);
            all.add(us);
        }
        one.merge(&two);
        assert_eq!(one, all);
        one.merge(&Times {
            counts: [vec![0; 5000], vec![1]].concat(),
            total_us: 0,
        });
        assert_eq!(one.count(), 5);
    }
}
