//! Messages between the processes of a node. `docs/protocols.md` tells the same in prose.
//!
//! [`keeper`] is spoken between the runtime and the keeper; [`frame`], [`runtime`], [`net`] and [`error`] between the
//! edge and the runtime; [`proxy`], in packets, between the runtime and the proxy; [`loading`] between the
//! runtime, the layer holder and the fetcher, which share [`filled`] as memory. The golden vectors in `tests/golden`
//! hold these types and `src/dsec/api` together.

pub mod audit;
pub mod egress;
pub mod error;
mod exec;
mod files;
pub mod filled;
pub mod frame;
pub mod holding;
pub mod journal;
pub mod keeper;
pub mod loading;
pub mod net;
mod output;
pub mod packet;
pub mod proxy;
pub mod range;
pub mod runtime;
mod sandbox;
pub mod session;
pub mod shared;
pub mod snapshots;
pub mod times;
mod tool;
