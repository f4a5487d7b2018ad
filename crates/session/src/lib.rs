//! Spawn plans and the forked code that executes them.
//!
//! Linked into the keeper (containers) and, later, the guest agent (VMs), so that a session means the same
//! on both. Nothing here decides: [`plan`] is data, the rest carries it out.

pub mod plan;
