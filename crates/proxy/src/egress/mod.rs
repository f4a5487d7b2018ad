//! The way out of a sandbox that has a network: every connection and every question about a name ends here.
//!
//! [`policy`] decides, [`hello`], [`sniff`] and [`asked`] read what a connection asks for, [`dns`] reads and writes questions and
//! answers: all of them pure. [`resolver`] answers names and remembers them in [`names`]; [`connection`] decides about a
//! connection, [`web`] about each request of plain HTTP, [`relay`] moves bytes, many of them by [`pipes`]; [`journal`] notes what did not pass.

pub mod asked;
pub mod connection;
pub mod dial;
pub mod dns;
pub mod hello;
pub mod journal;
pub mod names;
pub mod pipes;
pub mod policy;
pub mod relay;
pub mod resolver;
pub mod sandbox;
pub mod sniff;
pub mod upstream;
pub mod web;
