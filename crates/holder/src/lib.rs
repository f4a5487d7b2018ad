//! The layer holder: owns the pre-content events of layers that are filled on demand.

pub mod ahead;
pub mod complete;
mod confined;
pub mod counts;
pub mod fan;
mod hear;
pub mod holder;
pub mod journal;
pub mod keeper;
pub mod layer;
pub mod layers;
pub mod link;
pub mod serve;
pub mod table;
