//! What the kernel does with marked files below EROFS, and what goes wrong without each rule that the loader follows.
//! Needs root, Linux 6.14 and erofs-utils.

mod erofs;
mod freezer;
mod mapped;
mod mechanism;
mod traps;
