//! Which bytes of a stream are sent, dropped or missing. Pure.

use super::{HEAD_SEGMENTS, KEPT, SEGMENT};

/// A range of bytes that is kept in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its first byte in the stream, and the file's name.
    pub start: u64,
    /// How many bytes.
    pub length: u64,
}

impl Piece {
    /// First offset after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.length
    }
}

/// What stands at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Bytes of this piece.
    Bytes(Piece),
    /// Nothing kept until there.
    Gap(u64),
    /// Not written yet.
    End,
}

/// What stands at `offset`, in pieces ordered by their start.
#[must_use]
pub fn at(pieces: &[Piece], offset: u64) -> At {
    match pieces.iter().find(|piece| piece.end() > offset) {
        Some(piece) if piece.start <= offset => At::Bytes(*piece),
        Some(piece) => At::Gap(piece.start),
        None => At::End,
    }
}

/// Where the next bytes go: a new segment at `total`, or the last one, and how many fit.
#[must_use]
pub fn room(pieces: &[Piece]) -> (u64, u64) {
    match pieces.last() {
        Some(last) if last.length < SEGMENT => (last.start, SEGMENT - last.length),
        Some(last) => (last.end(), SEGMENT),
        None => (0, SEGMENT),
    }
}

/// Index of the piece to be dropped, if too much is kept: the oldest that is not of the head.
#[must_use]
pub fn surplus(pieces: &[Piece]) -> Option<usize> {
    let kept: u64 = pieces.iter().map(|piece| piece.length).sum();
    (kept > KEPT && pieces.len() > HEAD_SEGMENTS + 1).then_some(HEAD_SEGMENTS)
}

/// The ranges that `collect` sends of `total` bytes, at most `most` in all: head half and tail half.
#[must_use]
pub fn halves(total: u64, most: u64) -> Vec<(u64, u64)> {
    if total <= most {
        return vec![(0, total)];
    }
    let tail = most / 2;
    let head = most - tail;
    vec![(0, head), (total - tail, total)]
}

#[cfg(test)]
mod tests {
    use super::super::SURELY_KEPT;
    use super::*;

    fn pieces(lengths: &[(u64, u64)]) -> Vec<Piece> {
        lengths
            .iter()
            .map(|(start, length)| Piece {
                start: *start,
                length: *length,
            })
            .collect()
    }

    /// A reader finds bytes, the end of a gap, or the end.
    #[test]
    fn reader_sees_bytes_gap_end() {
        let kept = pieces(&[(0, 10), (30, 10)]);
        assert_eq!(at(&kept, 9), At::Bytes(kept[0]));
        assert_eq!(at(&kept, 10), At::Gap(30));
        assert_eq!(at(&kept, 39), At::Bytes(kept[1]));
        assert_eq!(at(&kept, 40), At::End);
        assert_eq!(at(&[], 0), At::End);
    }

    /// A full segment is followed by one that begins where it ended.
    #[test]
    fn segments_follow_each_other() {
        assert_eq!(room(&[]), (0, SEGMENT));
        assert_eq!(room(&pieces(&[(0, 5)])), (0, SEGMENT - 5));
        assert_eq!(room(&pieces(&[(0, SEGMENT)])), (SEGMENT, SEGMENT));
    }

    /// However much is written, the head stays and the rest is the newest, within the bound.
    #[test]
    fn oldest_but_the_head_goes() {
        let mut kept: Vec<Piece> = Vec::new();
        for number in 0..100 {
            kept.push(Piece {
                start: number * SEGMENT,
                length: SEGMENT,
            });
            while let Some(index) = surplus(&kept) {
                kept.remove(index);
            }
        }
        assert!(kept.iter().map(|piece| piece.length).sum::<u64>() <= KEPT);
        assert_eq!(kept[0].start, 0);
        assert_eq!(kept[1].start, SEGMENT);
        assert_eq!(kept.last().map(Piece::end), Some(100 * SEGMENT));
        assert_eq!(at(&kept, 2 * SEGMENT), At::Gap(kept[2].start));
    }

    /// However the bytes come, the newest `SURELY_KEPT` are never dropped: so far a held-up program may run ahead.
    #[test]
    fn newest_bytes_stay() {
        let mut kept: Vec<Piece> = Vec::new();
        for length in (1..=SEGMENT).step_by(77_777).cycle().take(2_000) {
            let (start, room) = room(&kept);
            let more = length.min(room);
            match kept.last_mut() {
                Some(last) if last.start == start => last.length += more,
                _ => kept.push(Piece {
                    start,
                    length: more,
                }),
            }
            while let Some(index) = surplus(&kept) {
                kept.remove(index);
            }
            let total = kept.last().map_or(0, Piece::end);
            let oldest = total.saturating_sub(SURELY_KEPT);
            assert!(
                matches!(at(&kept, oldest), At::Bytes(_)),
                "{oldest} of {total}"
            );
        }
    }

    /// The halves add up to what was asked for and touch both ends.
    #[test]
    fn halves_touch_both_ends() {
        assert_eq!(halves(10, 10), vec![(0, 10)]);
        assert_eq!(halves(11, 5), vec![(0, 3), (9, 11)]);
        assert_eq!(halves(7, 0), vec![(0, 0), (7, 7)]);
    }
}
