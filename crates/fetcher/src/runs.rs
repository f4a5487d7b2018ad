//! Chunks that are fetched with one request: neighbours in the data and in their blob. Pure.

use crate::index::{Chunk, Index};

/// Most chunks of one request: 4 MiB of data.
const MOST: usize = 16;

/// Some chunks, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one.
    pub first: u64,
    /// How many follow each other, this one included.
    pub count: u64,
}

impl Run {
    /// Its chunks.
    pub fn chunks(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

/// Requests for these chunks, which are in order.
#[must_use]
pub fn runs(index: &Index, chunks: &[u64]) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for &chunk in chunks {
        let follows = |run: &&mut Run| {
            let last = run.first + run.count - 1;
            chunk == last + 1
                && run.count < MOST as u64
                && adjoin(&index.chunks[last as usize], &index.chunks[chunk as usize])
        };
        match all.last_mut().filter(follows) {
            Some(run) => run.count += 1,
            None => all.push(Run {
                first: chunk,
                count: 1,
            }),
        }
    }
    all
}

/// Whether one follows the other in the store. What is all zeros is nowhere, and fetched apart.
fn adjoin(one: &Chunk, other: &Chunk) -> bool {
    one.length > 0
        && other.length > 0
        && one.blob == other.blob
        && one.offset + u64::from(one.length) == other.offset
}

#[cfg(test)]
mod tests {
    use dsec_proto::loading::CHUNK;

    use super::*;

    fn index(places: &[(u32, u32, u64)]) -> Index {
        let chunk = |&(blob, length, offset): &(u32, u32, u64)| Chunk {
            digest: [0; 32],
            blob,
            length,
            offset,
        };
        Index {
            blobs: vec![[0; 32], [1; 32]],
            chunks: places.iter().map(chunk).collect(),
            size: places.len() as u64 * CHUNK,
        }
    }

    fn shapes(index: &Index, chunks: &[u64]) -> Vec<(u64, u64)> {
        runs(index, chunks)
            .iter()
            .map(|run| (run.first, run.count))
            .collect()
    }

    /// Neighbours are one request; another blob, a hole in the blob, zeros, and a chunk left out begin a new one.
    #[test]
    fn neighbours() {
        let index = index(&[
            (0, 10, 0),
            (0, 10, 10),
            (0, 10, 30),
            (1, 10, 40),
            (1, 10, 50),
            (0, 0, 0),
            (1, 10, 60),
        ]);
        let all: Vec<u64> = (0..7).collect();
        let expected = [(0, 2), (2, 1), (3, 2), (5, 1), (6, 1)];
        assert_eq!(shapes(&index, &all), expected);
        assert_eq!(shapes(&index, &[0, 4, 6]), [(0, 1), (4, 1), (6, 1)]);
    }

    /// A request has its bound.
    #[test]
    fn long_ones() {
        let places: Vec<_> = (0..40).map(|at| (0, 10, at * 10)).collect();
        let all: Vec<u64> = (0..40).collect();
        assert_eq!(shapes(&index(&places), &all), [(0, 16), (16, 16), (32, 8)]);
    }
}
