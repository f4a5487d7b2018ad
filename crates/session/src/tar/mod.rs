//! Tar archives as streams: ustar headers, PAX records for what they cannot say, GNU.sparse 1.0 for holes.
//!
//! The reader takes every archive for hostile and holds all it keeps within bounds; neither side touches a filesystem.

mod fields;
mod reader;
mod writer;

use rustix::io::Errno;

use crate::failing::Fault;

pub(crate) use reader::Reader;
pub(crate) use writer::{end_mark, header};

pub(crate) const BLOCK: usize = 512;
/// Parts of a sparse file; beyond them the rest counts as one.
pub(crate) const MOST_PARTS: usize = 65_536;
/// Longest name in an archive.
pub(crate) const MOST_NAME: usize = 4096;

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Link,
    Directory,
    Fifo,
    /// A device: no sandbox may have one.
    Device,
}

/// One member, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
    /// Of links: where they lead.
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: i64,
    /// Of the file, holes included.
    pub(crate) size: u64,
    /// (offset, length) of what the archive holds; `None`: all of it.
    pub(crate) sparse: Option<Vec<(u64, u64)>>,
}

impl Member {
    pub(crate) fn parts(&self) -> Vec<(u64, u64)> {
        self.sparse.clone().unwrap_or_else(|| vec![(0, self.size)])
    }
}

fn padding(length: u64) -> usize {
    (BLOCK - (length % BLOCK as u64) as usize) % BLOCK
}

fn malformed(what: &str) -> Fault {
    Fault::with(Errno::BADMSG, format!("the archive is malformed: {what}"))
}
