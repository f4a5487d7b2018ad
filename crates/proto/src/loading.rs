//! Layers that are filled on demand: between the runtime and `dsec-holder`, and between that and `dsec-fetcher`. One
//! msgpack packet each on a SOCK_SEQPACKET, descriptors by SCM_RIGHTS.
//!
//! Who dials (the runtime the holder, the holder the fetcher) connects to the other's listening socket and sends one end
//! of a socket pair with a single byte; everything else is said on that pair. After a break everything is said again.

use serde::{Deserialize, Serialize};

use crate::times::Times;

/// Version of these protocols.
pub const VERSION: u32 = 2;
/// Most layers of one [`FromHolder::Going`].
pub const PAGE: usize = 64;
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
/// Why a layer is refused when as many are open as can be: letting go of one makes room.
pub const FULL: &str = "too many layers are not complete";

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
        /// The layers with larger numbers than this.
        #[serde(default)]
        after: u32,
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
        /// How it goes.
        going: Going,
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
    /// Somebody will want this range if they read on. There is no answer.
    Ahead {
        /// The layer.
        layer: u32,
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
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
    /// What has been done about a layer since that was last said; at most once a second, and before [`Self::Complete`].
    Fetched {
        /// The layer.
        layer: u32,
        /// What.
        fetched: Fetched,
    },
}

/// What the fetcher counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Requests to the store.
    pub requests: u64,
    /// Requests made again after a failure.
    pub retries: u64,
    /// Bytes that came from the store, as stored.
    pub stored_bytes: u64,
    /// Bytes that were filled.
    pub fetched_bytes: u64,
    /// Chunks whose bytes were not those of their digest.
    pub corrupt: u64,
    /// Ranges that could not be had.
    pub failed: u64,
    /// How long requests to the store took.
    pub took: Times,
}

/// What reads of layers on demand have come to since the holder began, of one layer or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadingCounts {
    /// Reads that asked and whose range was there.
    pub hits: u64,
    /// Reads that waited until their range was there.
    pub misses: u64,
    /// Reads that ended with an I/O error.
    pub errors: u64,
    /// Reads that wait now.
    pub waiting: u64,
    /// How long half of the misses waited at most.
    pub wait_p50_us: u64,
    /// How long 99 of 100 misses waited at most.
    pub wait_p99_us: u64,
    /// How long all misses together waited.
    pub wait_total_us: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Requests made again after a failure.
    pub retries: u64,
    /// Bytes that came from the store, as stored.
    pub stored_bytes: u64,
    /// Bytes that were filled.
    pub fetched_bytes: u64,
    /// Chunks whose bytes were not those of their digest: each was fetched once more.
    pub corrupt: u64,
    /// Ranges that could not be had.
    pub failed: u64,
    /// How long half of the requests took at most.
    pub fetch_p50_us: u64,
    /// How long 99 of 100 requests took at most.
    pub fetch_p99_us: u64,
    /// How long all requests together took.
    pub fetch_total_us: u64,
}

/// A layer that is open and not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerLoading {
    /// Its number; a layer that was removed and fetched again has two while the former files are in use.
    pub layer: u32,
    /// Its digest.
    pub digest: String,
    /// Bytes of its data.
    pub bytes: u64,
    /// Bytes of it that are here.
    pub filled_bytes: u64,
    /// Since it was opened, or the holder began.
    pub counts: LoadingCounts,
}

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Going {
    /// Whether there is a fetcher.
    pub fetcher: bool,
    /// How long the read has waited that waits longest.
    pub oldest_wait_ms: u64,
    /// Of all layers, also those that are complete or closed by now.
    pub counts: LoadingCounts,
    /// Some of those that are open and not complete, by number.
    pub layers: Vec<LayerLoading>,
    /// There are more after these.
    pub more: bool,
}
