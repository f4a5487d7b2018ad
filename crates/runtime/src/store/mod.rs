//! What sandboxes are made of on disk: layers, the pool, and the root that is laid over both.
//!
//! Everything here runs on threads inside the layers' mount namespace, which nobody else ever enters.

mod gone;
mod layers;
mod pool;
mod read_ahead;
mod root;

pub use gone::Gone;
pub use layers::Layers;
pub use pool::{boot_id, close as close_pool, open as open_pool};
pub use root::{build, Root, RootSpec};
