//! Spawn plans and the forked code that executes them.
//!
//! Linked into the keeper (containers) and, later, the guest agent (VMs), so that a session means the same
//! on both. Nothing here decides: [`plan`] is data, the rest carries it out. [`launch`] is the parent's side
//! (one clone, with the credentials and namespaces it needs around it), `child` the other one: it walks
//! through the steps, tells the parent by [`status`] how far it came, and never returns.

mod capabilities;
pub mod check;
mod child;
pub mod confined;
mod draft;
mod exec;
mod failing;
mod fdmap;
mod file_calls;
mod file_list;
mod file_op;
mod file_plan;
mod file_target;
mod file_watch;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod home;
mod in_root;
pub mod landlock;
pub mod launch;
mod mounts;
mod pack;
pub mod passwd;
mod pipe_io;
pub mod plan;
mod processors;
pub mod status;
mod steps;
mod sys;
mod tar;
mod terminal;
mod unpack;
pub mod unprivileged;
mod users;
#[cfg(feature = "weaken")]
mod weaken;
