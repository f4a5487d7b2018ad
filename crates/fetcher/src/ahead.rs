//! How much more than what is asked for is fetched. Pure.

use std::ops::Range;

/// Most chunks ahead: 4 MiB.
const MOST: u64 = 16;
/// Sequences that are followed at once in a layer.
const SEQUENCES: usize = 16;

/// A reader that goes forwards.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// The chunk after the last one wanted.
    next: u64,
    /// How many chunks are fetched ahead of it.
    window: u64,
    /// Up to where they have been asked for.
    fetched: u64,
}

/// What is known of a layer's readers. The last one used comes last.
#[derive(Debug, Default)]
pub struct Ahead {
    sequences: Vec<Sequence>,
}

impl Ahead {
    /// Some chunks are wanted. Returns which ones to fetch ahead: none for what looks random, then twice as many at
    /// each step forwards.
    pub fn wanted(&mut self, chunks: &Range<u64>) -> Range<u64> {
        let follows = |sequence: &Sequence| {
            let near = sequence.next.saturating_sub(1)..=sequence.fetched.max(sequence.next);
            near.contains(&chunks.start)
        };
        let Some(place) = self.sequences.iter().rposition(follows) else {
            if self.sequences.len() == SEQUENCES {
                self.sequences.remove(0);
            }
            self.sequences.push(Sequence {
                next: chunks.end,
                window: 0,
                fetched: chunks.end,
            });
            return chunks.end..chunks.end;
        };
        let mut sequence = self.sequences.remove(place);
        if chunks.end > sequence.next {
            sequence.window = (sequence.window * 2).clamp(1, MOST);
            sequence.next = chunks.end;
        }
        let from = sequence.fetched.max(chunks.end);
        let to = (sequence.next + sequence.window).max(from);
        sequence.fetched = to;
        self.sequences.push(sequence);
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random reads fetch nothing more.
    #[test]
    fn random() {
        let mut ahead = Ahead::default();
        for chunk in [100, 7, 5000, 30, 900, 2] {
            assert!(ahead.wanted(&(chunk..chunk + 1)).is_empty());
        }
    }

    /// A sequence fetches 1, 2, 4, 8 and then always 16 chunks ahead, none twice.
    #[test]
    fn sequential() {
        let mut ahead = Ahead::default();
        let mut fetched = 1;
        let mut windows = Vec::new();
        for chunk in 0..8 {
            let more = ahead.wanted(&(chunk..chunk + 1));
            assert!(more.is_empty() || more.start == fetched.max(chunk + 1));
            fetched = fetched.max(more.end);
            windows.push(fetched - (chunk + 1));
        }
        assert_eq!(windows, [0, 1, 2, 4, 8, 16, 16, 16]);
    }

    /// A reader that meets only what is at the end of what was fetched ahead is still the same one.
    #[test]
    fn at_the_edge() {
        let mut ahead = Ahead::default();
        ahead.wanted(&(0..1));
        ahead.wanted(&(1..2));
        assert_eq!(ahead.wanted(&(3..4)), 4..6);
        assert_eq!(ahead.wanted(&(6..7)), 7..11);
    }

    /// Two readers in one layer do not disturb each other.
    #[test]
    fn two_at_once() {
        let mut ahead = Ahead::default();
        for step in 0..3 {
            let one = ahead.wanted(&(step..step + 1));
            let two = ahead.wanted(&(1000 + step..1001 + step));
            assert_eq!(one.end - one.start, two.end - two.start);
        }
        assert_eq!(ahead.wanted(&(3..4)).end, 8);
    }

    /// Asked again for the same, nothing more is fetched.
    #[test]
    fn again() {
        let mut ahead = Ahead::default();
        ahead.wanted(&(0..1));
        assert_eq!(ahead.wanted(&(1..2)), 2..3);
        assert!(ahead.wanted(&(1..2)).is_empty());
    }
}
