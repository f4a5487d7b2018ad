//! Layers that are filled on demand: between the runtime and `dsec-holder`, and between that and `dsec-fetcher`. One
//! msgpack packet each on a SOCK_SEQPACKET, descriptors by SCM_RIGHTS.
//!
//! Who dials (the runtime the holder, the holder the fetcher) connects to the other's listening socket and sends one end
//! of a socket pair with a single byte; everything else is said on that pair. After a break everything is said again.

use serde::{Deserialize, Serialize};

/// Version of these protocols.
pub const VERSION: u32 = 1;
/// Bytes of data that one digest covers, and that are there together or not at all.
pub const CHUNK: u64 = 256 << 10;
/// What a `filled` record begins with; the count of chunks follows (u64, little endian), then one bit a chunk, the first
/// is the lowest of its byte. A shorter or another file means that nothing is filled.
pub const RECORD_MAGIC: [u8; 8] = *b"DSFILL01";
/// What a `filled` record begins with once data could not be brought to disk: nothing of it is trusted, and for as long
/// as the layer is open nothing is recorded again.
pub const RECORD_LOST: [u8; 8] = *b"DSLOST01";
/// Bytes before the bits of a record.
pub const RECORD_HEAD: usize = 16;

/// How many chunks so many bytes are.
#[must_use]
pub fn chunks(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK)
}

/// Runtime to holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHolder {
    /// First packet.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// From now on reads of this layer's `data` wait until they are filled. Comes with the layer's directory.
    Open {
        /// Repeated in the answer.
        turn: u64,
        /// The layer.
        digest: String,
    },
    /// Nobody has it mounted any more. Unknown ones are no fault.
    Close {
        /// Repeated in the answer.
        turn: u64,
        /// Of the [`FromHolder::Opened`].
        layer: u32,
        /// Whose number that is. Said of another layer, or of none, it closes nothing.
        #[serde(default)]
        digest: String,
    },
    /// How it goes.
    Ask {
        /// Repeated in the answer.
        turn: u64,
    },
}

/// Holder to runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHolder {
    /// Answer to [`ToHolder::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// It may be mounted.
    Opened {
        /// Of the request.
        turn: u64,
        /// These files' number; none when all of it is there.
        layer: Option<u32>,
    },
    /// It must not be mounted.
    Refused {
        /// Of the request.
        turn: u64,
        /// Why, for people.
        reason: String,
    },
    /// It is let go.
    Closed {
        /// Of the request.
        turn: u64,
    },
    /// Answer to [`ToHolder::Ask`].
    Going {
        /// Of the request.
        turn: u64,
        /// Since the holder began.
        counts: Counts,
        /// Layers that are not complete.
        layers: Vec<Going>,
    },
}

/// Holder to fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToFetcher {
    /// First packet.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// A layer, with its `layer.json`, `chunks`, `data` and `filled`, and the shared bits of what is filled.
    Layer {
        /// Its number.
        layer: u32,
        /// Its digest.
        digest: String,
    },
    /// Somebody waits for this range.
    Want {
        /// Repeated in the answer.
        id: u64,
        /// The layer.
        layer: u32,
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// How long they have waited.
        waited_ms: u64,
    },
    /// Let go of a layer; what is filled is recorded.
    Drop {
        /// The layer.
        layer: u32,
    },
}

/// Fetcher to holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromFetcher {
    /// Answer to [`ToFetcher::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// The layer's index agrees with its digest.
    Took {
        /// The layer.
        layer: u32,
        /// Why it does not, for people.
        refused: Option<String>,
    },
    /// A wanted range is there, or cannot be had.
    Done {
        /// Of the want.
        id: u64,
        /// Why not.
        errno: Option<u8>,
    },
    /// All of a layer is there, and on disk.
    Complete {
        /// The layer.
        layer: u32,
    },
    /// What has been fetched since the fetcher began; sent when it changes, not more than once a second.
    Fetched(Fetched),
}

/// What the fetcher counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Requests to the store.
    pub requests: u64,
    /// Bytes that came from it, as stored.
    pub stored_bytes: u64,
    /// Bytes that were filled.
    pub filled_bytes: u64,
    /// Requests made again after a failure.
    pub retries: u64,
    /// Chunks whose bytes were not those of their digest.
    pub corrupt: u64,
    /// Ranges that could not be had.
    pub failed: u64,
}

/// What the holder counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Reads of marked files whose range was there.
    pub hits: u64,
    /// Those that had to wait for it.
    pub misses: u64,
    /// Those that ended with an I/O error.
    pub denied: u64,
    /// Misses that took less than 2^N ms each, N from 0; the last one counts all others.
    pub waits: Vec<u64>,
    /// Reads that wait now.
    pub waiting: u64,
    /// The fetcher's.
    pub fetched: Fetched,
}

/// A layer that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Going {
    /// The layer.
    pub digest: String,
    /// Bytes of its data.
    pub bytes: u64,
    /// Bytes of it that are filled.
    pub filled_bytes: u64,
}
