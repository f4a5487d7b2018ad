//! On how many processors a program may run: what `nproc` and its like count.

use rustix::io::Errno;

use crate::failing::{Doing, Fault};
use crate::sys;

/// Bits of a mask.
const BITS: usize = 64;

/// Narrow this process to `count` processors: the one that the kernel has just chosen for it, and the next ones. So programs
/// that start spread as they would have without, and the mask costs no move.
pub(crate) fn narrow(count: u32) -> Result<(), Fault> {
    let allowed = sys::affinity().doing(|| "ask for the processors")?;
    let here = sys::processor().doing(|| "ask for the processor")?;
    let Some(mask) = chosen(&allowed, here, count) else {
        return Ok(());
    };
    match sys::set_affinity(&mask) {
        // One of them went offline meanwhile, or a cpuset has changed: the mask only sizes, it does not hold.
        Err(Errno::INVAL) => Ok(()),
        set => set.doing(|| "narrow the processors"),
    }
}

/// `count` of the processors allowed, from `first` on and then around; `None` when there are no more than that.
fn chosen(allowed: &[u64], first: u32, count: u32) -> Option<Vec<u64>> {
    let total: u32 = allowed.iter().map(|word| word.count_ones()).sum();
    if total <= count {
        return None;
    }
    let width = allowed.len() * BITS;
    let mut mask = vec![0; allowed.len()];
    (0..width)
        .map(|step| (first as usize + step) % width)
        .filter(|cpu| allowed[cpu / BITS] & (1 << (cpu % BITS)) != 0)
        .take(count as usize)
        .for_each(|cpu| mask[cpu / BITS] |= 1 << (cpu % BITS));
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the present processor on, around the end, over those that are not allowed, across words.
    #[test]
    fn neighbours_are_chosen() {
        assert_eq!(chosen(&[0b1111], 1, 2), Some(vec![0b0110]));
        assert_eq!(chosen(&[0b1111], 3, 2), Some(vec![0b1001]));
        assert_eq!(chosen(&[0b1101], 0, 2), Some(vec![0b0101]));
        assert_eq!(chosen(&[1 << 63, 1, 0], 63, 1), Some(vec![1 << 63, 0, 0]));
        assert_eq!(chosen(&[1 << 63, 3, 0], 63, 2), Some(vec![1 << 63, 1, 0]));
        assert_eq!(chosen(&[0b1100], 9, 1), Some(vec![0b0100]));
    }

    /// Nothing to be done where no more are allowed anyway.
    #[test]
    fn few_are_left_alone() {
        assert_eq!(chosen(&[0b11], 0, 2), None);
        assert_eq!(chosen(&[0b11], 0, 64), None);
    }

    /// Seen by this process's own mask: so many, and the present one among them when nothing else moves it.
    #[test]
    fn a_thread_is_narrowed() {
        std::thread::spawn(|| {
            narrow(1).expect("any thread may");
            let mask = sys::affinity().expect("is told");
            let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
            assert_eq!(count, 1);
        })
        .join()
        .expect("no panic");
    }
}
