//! The layer holder: owns the pre-content events of layers that are filled on demand.

pub mod counts;
pub mod fan;
pub mod holder;
pub mod journal;
pub mod keeper;
pub mod layers;
pub mod link;
pub mod serve;
pub mod table;
