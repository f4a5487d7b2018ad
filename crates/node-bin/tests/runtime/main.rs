//! The runtime over a real keeper, as root: what the edge sees on `runtime.sock`, and what is left behind.

mod client;
mod contained;
mod ends;
mod execs;
mod files;
mod filled;
mod leases;
mod limits;
mod node;
mod restart;
mod streams;
