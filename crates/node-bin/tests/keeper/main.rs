//! The keeper as a process: real clones, namespaces and signals, as root.

mod client;
mod node;
mod plans;

mod host;
mod latency;
mod sandbox;
