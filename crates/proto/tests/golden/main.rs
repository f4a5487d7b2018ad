//! Golden vectors: `tests/golden/*.json` at the root of the repository hold each message as JSON and as the bytes of its
//! msgpack. The Python tests read the same files, which holds the two sides together.
//!
//! `DSEC_GOLDEN=write cargo test -p dsec-proto` writes them anew after a deliberate change.

mod answers;
mod frames;
mod loading;
mod requests;
mod samples;
mod vectors;
