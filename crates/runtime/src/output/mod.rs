//! What programs write: segment files, filled from pipes, read by any number of readers.

mod budget;
mod log;
mod plan;
mod tail;

pub use budget::Budget;
pub use log::{Log, Part, Pull, Read};
pub use plan::{halves, Piece};
pub use tail::{kept_tail, remove, shrink};

/// Bytes of a segment.
pub const SEGMENT: u64 = 4 << 20;
/// Most bytes of a frame of output: whole pages, so that they go from file to socket in few pieces.
pub const FRAME: usize = dsec_proto::frame::MAX_DATA & !4095;
/// Most that is kept of a stream.
pub const KEPT: u64 = 64 << 20;
/// Segments at the beginning that stay.
pub const HEAD_SEGMENTS: usize = 2;
/// So many of the newest bytes are there whatever was dropped: what stays at the beginning and one segment, dropped whole, are not among them.
pub const SURELY_KEPT: u64 = KEPT - (HEAD_SEGMENTS as u64 + 1) * SEGMENT;
/// What is kept of a finished exec per stream when room is needed, and of a stopped sandbox.
pub const TAIL: u64 = 64 << 10;
