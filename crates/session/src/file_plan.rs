//! File operations as data: what forked code does inside the sandbox with the caller's IDs, and what it reports.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::plan::FdIndex;

/// A file operation, run with the caller's IDs inside the sandbox. Paths are relative to `Chdir`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOp {
    /// Copy a regular file's bytes to a pipe.
    Read {
        /// Path in the sandbox.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// First byte.
        offset: u64,
        /// At most so many bytes.
        limit: Option<u64>,
        /// Write end of a pipe.
        output: FdIndex,
    },
    /// Replace a regular file atomically by what a pipe brings.
    Write {
        /// Path in the sandbox.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Permission bits of a new file; an existing one keeps its own when `None`.
        mode: Option<u32>,
        /// Make missing parent directories.
        parents: bool,
        /// Exactly so many bytes, else nothing is replaced.
        length: u64,
        /// Read end of a pipe.
        input: FdIndex,
    },
    /// A question or a change without a stream.
    Call(FileCall),
    /// What a directory holds, as records (4 bytes of length, big endian, then a `FileInfo` in msgpack).
    List {
        /// Path in the sandbox.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// 1: its own entries; 2: those of its directories too, and so on.
        depth: u32,
        /// Write end of a pipe.
        output: FdIndex,
    },
    /// What changes, as records of `FileEvent`, until nobody reads any more.
    Watch {
        /// A file or a directory.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Everything below it too.
        recursive: bool,
        /// Write end of a pipe.
        output: FdIndex,
    },
    /// A file or a tree as a tar archive.
    Pack {
        /// Path in the sandbox.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Where `path` is a link: what it leads to, not the link.
        follow: bool,
        /// What it is called in the archive; `.` for the path itself.
        name: ByteBuf,
        /// Write end of a pipe.
        output: FdIndex,
    },
    /// A tar archive as a file or a tree; the member `.` is the path itself.
    Unpack {
        /// Path in the sandbox.
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        /// Make missing parent directories.
        parents: bool,
        /// Give members the owner that the archive says.
        owners: bool,
        /// Read end of a pipe.
        input: FdIndex,
    },
}

/// A file operation whose report is all of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FileCall {
    /// What a path names.
    Stat {
        /// Path in the sandbox.
        path: ByteBuf,
        /// Of a link: what it leads to, not the link.
        follow: bool,
    },
    /// Make a directory.
    Mkdir {
        /// Path in the sandbox.
        path: ByteBuf,
        /// Make missing parents.
        parents: bool,
        /// A directory that is there is as good.
        exist_ok: bool,
        /// Permission bits, exactly these; `None`: 755.
        mode: Option<u32>,
    },
    /// Rename.
    Move {
        /// What.
        source: ByteBuf,
        /// Its new name.
        target: ByteBuf,
        /// Take the place of a file or an empty directory.
        overwrite: bool,
    },
    /// Remove a file, a link, an empty directory, or a tree.
    Remove {
        /// Path in the sandbox.
        path: ByteBuf,
        /// With everything in it.
        recursive: bool,
        /// What is not there is as good as removed.
        missing_ok: bool,
    },
}

impl FileCall {
    /// The path that it is about first.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Stat { path, .. } | Self::Mkdir { path, .. } | Self::Remove { path, .. } => path,
            Self::Move { source, .. } => source,
        }
    }
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// As asked for; in a list relative to the directory listed.
    pub path: ByteBuf,
    /// `file`, `directory`, `link`, `fifo`, `socket`, `char`, `block`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as seen inside.
    pub uid: u32,
    /// Group, as seen inside.
    pub gid: u32,
    /// Last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Where a link leads.
    pub target: Option<ByteBuf>,
}

/// One change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// `created`, `modified`, `closed` (by a writer), `removed`, `moved`, `attributes`, `overflow`.
    pub kind: String,
    /// Relative to the watched path; empty for itself.
    pub path: ByteBuf,
    /// Its new name, of `moved`.
    pub target: Option<ByteBuf>,
    /// Whether it is a directory.
    pub directory: bool,
}

/// What a file operation did, msgpack in `ended.report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReport {
    /// 0, or the errno.
    pub errno: i32,
    /// Bytes of file content.
    pub bytes: u64,
    /// Size of the file.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Files, directories and links listed, packed, unpacked or removed.
    #[serde(default)]
    pub entries: u64,
    /// Members that no archive can hold or no sandbox may have, left out: sockets, FIFOs, devices.
    #[serde(default)]
    pub skipped: u64,
    /// Which path failed, where it is not the one asked for.
    #[serde(default)]
    pub path: Option<ByteBuf>,
    /// What was wrong, where the errno does not say it.
    #[serde(default)]
    pub message: Option<String>,
    /// Of `Stat`.
    #[serde(default)]
    pub info: Option<FileInfo>,
}
