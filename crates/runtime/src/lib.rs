//! dsec-runtime: the node's objects, sessions, output, timers and kills.
//!
//! It owns what the kernel has to be asked for (mounts, cgroups, subvolumes, namespaces) and everything that happens in
//! time, and it keeps nothing that it cannot rebuild from the keeper, the kernel and its output files. The edge speaks to it over
//! `runtime.sock` ([`connection`], [`methods`]); it speaks to the keeper ([`keeper`]), which makes processes from its
//! plans ([`plans`]).
//!
//! One thread owns the state ([`node`]) and never blocks for long; kernel work that does is done by the [`workers`].

pub mod audit;
pub mod check;
pub mod config;
pub mod connection;
pub mod deadlines;
pub mod disks;
pub mod ending;
pub mod events;
pub mod exec;
pub mod files;
pub mod groups;
pub mod jobs;
pub mod keeper;
pub mod kernel;
pub mod layers;
pub mod memory;
pub mod methods;
pub mod net;
pub mod node;
pub mod notices;
pub mod output;
pub mod pause;
pub mod plans;
pub mod probe;
mod probe_filling;
pub mod profiles;
pub mod protected;
pub mod recover;
pub mod sandbox;
pub mod seen;
pub mod serve;
pub mod session;
pub mod shutdown;
pub mod slot;
pub mod slots;
pub mod snapshots;
pub mod store;
pub mod tag;
pub mod timers;
pub mod tools;
#[cfg(feature = "weaken")]
pub mod weaken;
pub mod workers;
