//! Which descriptor numbers stay open, as plain numbers.

/// The ranges between the numbers to keep, up to the largest possible.
pub(crate) fn gaps(keep: &[i32]) -> Vec<(u32, u32)> {
    let mut kept: Vec<u32> = keep
        .iter()
        .filter_map(|fd| u32::try_from(*fd).ok())
        .collect();
    kept.sort_unstable();
    kept.dedup();
    let mut ranges = Vec::with_capacity(kept.len() + 1);
    let mut next = 0;
    for fd in kept {
        if fd > next {
            ranges.push((next, fd - 1));
        }
        next = fd + 1;
    }
    ranges.push((next, u32::MAX));
    ranges
}

/// The first number above all targets and the standard three: where copies wait for their target to be free.
pub(crate) fn floor(targets: impl Iterator<Item = i32>) -> i32 {
    targets.max().unwrap_or(2).max(2) + 1
}

/// The standard three that are not among the targets.
pub(crate) fn unset(targets: &[i32]) -> impl Iterator<Item = i32> + '_ {
    (0..3).filter(|standard| !targets.contains(standard))
}

#[cfg(test)]
mod tests {
    use super::{floor, gaps, unset};

    /// Everything outside the list is in exactly one range.
    #[test]
    fn gaps_cover_the_rest() {
        assert_eq!(gaps(&[]), vec![(0, u32::MAX)]);
        assert_eq!(gaps(&[5, 3, 4, 9, 4]), vec![(0, 2), (6, 8), (10, u32::MAX)]);
        assert_eq!(gaps(&[0, 1]), vec![(2, u32::MAX)]);
    }

    /// Copies wait above every target.
    #[test]
    fn floor_is_above() {
        assert_eq!(floor([].into_iter()), 3);
        assert_eq!(floor([1, 0].into_iter()), 3);
        assert_eq!(floor([7, 3].into_iter()), 8);
    }

    /// The standard three that nobody gave are named.
    #[test]
    fn unset_standard_descriptors() {
        assert_eq!(unset(&[1, 7]).collect::<Vec<_>>(), vec![0, 2]);
    }
}
