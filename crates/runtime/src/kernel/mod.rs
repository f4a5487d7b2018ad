//! The kernel as the runtime needs it: thin, typed, without policy. All calls block and belong on an object
//! thread, unless they say that they are quick.

pub mod btrfs;
pub mod loops;
pub mod lsm;
pub mod mounts;
pub mod namespaces;
pub mod netlink;
pub mod notify;
pub mod poll;
pub mod seccomp;
pub mod sys;
