//! How much more than what is asked for is fetched. Pure.

use std::ops::Range;

use dsec_proto::loading::CHUNK;

/// Most bytes ahead of a reader.
const MOST: u64 = 16 << 20;
/// Sequences that are followed at once in a layer.
const SEQUENCES: usize = 16;

/// A reader that goes forwards.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// Where its last read ended.
    next: u64,
    /// How far ahead of that is fetched.
    window: u64,
    /// Up to where has been asked for.
    asked: u64,
}

/// What is known of a layer's readers. The last one used comes last.
#[derive(Debug, Default)]
pub struct Ahead {
    sequences: Vec<Sequence>,
}

impl Ahead {
    /// Something is read. Returns what to fetch ahead of it, often nothing: for what looks random, and while more than
    /// half of the window is still to be read. Then it doubles: what is fetched in vain stays in proportion to what was read.
    pub fn read(&mut self, offset: u64, length: u64) -> Range<u64> {
        let end = offset.saturating_add(length);
        let follows = |sequence: &Sequence| {
            let near = sequence.next.saturating_sub(CHUNK)..=sequence.asked.max(sequence.next);
            near.contains(&offset)
        };
        let Some(place) = self.sequences.iter().rposition(follows) else {
            if self.sequences.len() == SEQUENCES {
                self.sequences.remove(0);
            }
            self.sequences.push(Sequence {
                next: end,
                window: 0,
                asked: end,
            });
            return end..end;
        };
        let mut sequence = self.sequences.remove(place);
        let mut more = end..end;
        if end > sequence.next {
            sequence.next = end;
            sequence.asked = sequence.asked.max(end);
            if sequence.asked - end <= sequence.window / 2 {
                sequence.window = (sequence.window * 2).clamp(CHUNK, MOST);
                more = sequence.asked..end.saturating_add(sequence.window);
                sequence.asked = more.end;
            }
        }
        self.sequences.push(sequence);
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = CHUNK / 2;

    /// Random reads fetch nothing more.
    #[test]
    fn random() {
        let mut ahead = Ahead::default();
        for chunk in [100, 7, 5000, 30, 900, 2] {
            assert!(ahead.read(chunk * CHUNK, 4096).is_empty());
        }
    }

    /// A reader that goes on has more and more ahead of it, up to the most and never more than four times what it has
    /// read, each byte asked for once and in order, in pieces of half the window by then.
    #[test]
    fn sequential() {
        let mut ahead = Ahead::default();
        let (mut asked, mut pieces) = (STEP, Vec::new());
        for step in 0..600 {
            let end = (step + 1) * STEP;
            let more = ahead.read(step * STEP, STEP);
            if !more.is_empty() {
                assert_eq!(more.start, asked.max(end));
                pieces.push(more.end - more.start);
            }
            asked = asked.max(more.end);
            assert!(asked <= end + MOST && asked <= 4 * end, "{step}");
            assert!(step < 128 || asked >= end + MOST / 2, "{step}");
        }
        assert_eq!(pieces[0], CHUNK);
        assert!(pieces[8..].iter().all(|piece| *piece >= MOST / 2));
    }

    /// A reader that others spare most of the way, since what they read is in memory, is still the same one.
    #[test]
    fn in_leaps() {
        let mut ahead = Ahead::default();
        ahead.read(0, STEP);
        let first = ahead.read(STEP, STEP);
        assert_eq!(first, CHUNK..2 * CHUNK);
        let second = ahead.read(2 * CHUNK, STEP);
        assert_eq!(second, 2 * CHUNK + STEP..4 * CHUNK + STEP);
    }

    /// Two readers in one layer do not disturb each other.
    #[test]
    fn two_at_once() {
        let mut ahead = Ahead::default();
        let far = 1000 * CHUNK;
        for step in 0..20 {
            let one = ahead.read(step * STEP, STEP);
            let two = ahead.read(far + step * STEP, STEP);
            assert_eq!(one.end - one.start, two.end - two.start);
            assert_eq!(one.is_empty(), two.is_empty());
        }
    }

    /// Asked again for the same, and at the end of all numbers, nothing more is fetched.
    #[test]
    fn again() {
        let mut ahead = Ahead::default();
        ahead.read(0, STEP);
        assert!(!ahead.read(STEP, STEP).is_empty());
        assert!(ahead.read(STEP, STEP).is_empty());
        ahead.read(u64::MAX - 1, u64::MAX);
        assert!(ahead.read(u64::MAX, u64::MAX).is_empty());
    }
}
