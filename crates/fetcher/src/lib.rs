//! The fetcher: fills ranges of layers from a store, a directory or a bucket.
//!
//! It runs without privileges: what it may write it has as descriptors from the holder, what it reads is checked against
//! digests before anybody sees it.

pub mod bucket;
pub mod config;
pub mod confined;
pub mod directory;
mod fetch;
pub mod fetcher;
pub mod fill;
pub mod index;
pub mod layer;
pub mod placing;
pub mod runs;
pub mod serve;
pub mod store;
