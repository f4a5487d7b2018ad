//! dsec-proxy: moves and inspects the bytes between sandboxes and the rest.
//!
//! Requests to exposed ports come from the apiserver over `ports.sock` ([`port`]); requests of sandboxes to their
//! endpoints come from listeners in the sandboxes' own network namespaces ([`endpoint`]). Both are parsed, checked and
//! written anew, never copied: [`target`], [`host`] and [`headers`] decide what may pass. All that it knows it is told
//! by the runtime ([`link`]), from which it has every descriptor into a sandbox. It runs without privileges and keeps
//! nothing: when it dies connections drop, and its successor is told everything again.

pub mod answer;
pub mod body;
pub mod config;
pub mod confined;
pub mod connect;
pub mod cut;
pub mod egress;
pub mod endpoint;
pub mod forward;
pub mod headers;
pub mod host;
pub mod limits;
pub mod link;
pub mod origin;
pub mod port;
pub mod serve;
pub mod state;
pub mod target;
pub mod token;
pub mod tunnel;
