//! What must hold of every reader of foreign bytes, whatever the bytes.
//!
//! Each target takes some bytes and panics where a promise does not hold: beside no panic and no endless memory, that what
//! was read is what would be read of it again, and that what was let pass says to the other side exactly what it said
//! here. `tests/mutations` drives them with the toolchain that there is, `fuzz/` with coverage (`make fuzz`), both from
//! the seeds in `fuzz/corpus`.

mod archives;
mod http;
mod layers;
mod names;
mod network;
mod upstream;
mod wire;

/// A target, by the name of its corpus.
pub struct Target {
    /// The corpus's name.
    pub name: &'static str,
    /// Panics where a promise does not hold.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// All of them.
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), run: $module::$name }),*];
    };
}

targets! {
    wire::frames,
    wire::requests,
    wire::keeper_packets,
    wire::peer_packets,
    network::client_hello,
    network::first_bytes,
    network::dns_questions,
    network::dns_answers,
    network::egress_tables,
    http::web_requests,
    http::web_answers,
    names::port_tokens,
    names::endpoint_targets,
    names::users,
    archives::tar,
    layers::chunk_index,
    layers::records,
}
