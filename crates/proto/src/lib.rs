//! Messages between the processes of a node. `docs/protocols.md` tells the same in prose.

pub mod keeper;
