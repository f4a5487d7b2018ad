//! Layers that are filled on demand: keeper, holder and fetcher as they run on a node, a store that is a directory, and
//! EROFS. The test is the runtime. Needs root, Linux 6.14 and erofs-utils.

mod confined;
mod deaths;
mod layer;
mod node;
mod readers;
mod speed;
mod stores;
