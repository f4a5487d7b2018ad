//! The keeper as a process: real clones, namespaces and signals, as root.

mod client;
mod node;
mod plans;

mod files;
mod groups;
mod holding;
mod host;
mod latency;
mod mounts;
mod replacing;
mod sandbox;
mod services;
mod terminals;
