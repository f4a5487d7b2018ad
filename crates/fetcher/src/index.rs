//! Where each chunk of a layer lies in the store. `src/dsec/stores/index.py` reads and writes the same; the golden files
//! hold both to it.

use dsec_proto::loading::{chunks, CHUNK};
use ring::digest::{digest, Context, SHA256};
use serde::Deserialize;

const MAGIC: &[u8] = b"DSCHNK01";
const HEAD: usize = 24;
const DIGEST: usize = 32;
const ENTRY: usize = 48;
/// Bytes of the largest blob that holds chunks.
const MAX_BLOB: u64 = 64 << 20;
/// Bytes of the longest `layer.json`.
pub const LONGEST_MANIFEST: u64 = 64 << 10;
/// Bytes of the longest index: of 256 GiB of data, and as many blobs as chunks.
pub const LONGEST_INDEX: u64 = HEAD as u64 + (ENTRY + DIGEST) as u64 * (1 << 20);

/// A sha256.
pub type Digest = [u8; DIGEST];

/// What `layer.json` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: String,
    #[serde(rename = "metadata")]
    _metadata: Blob,
    data: Blob,
    chunk_size: u64,
    chunks_sha256: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Blob {
    #[serde(rename = "sha256")]
    _sha256: String,
    size: u64,
}

/// One chunk: what it is, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Of its bytes as they are read.
    pub digest: Digest,
    /// Place in the list of blobs.
    pub blob: u32,
    /// Bytes stored: as many as it has, fewer (a zstd frame), or none (zeros).
    pub length: u32,
    /// Where in the blob.
    pub offset: u64,
}

/// An index that is its layer's.
#[derive(Debug, PartialEq, Eq)]
pub struct Index {
    /// Names of blobs.
    pub blobs: Vec<Digest>,
    /// In the order of the data.
    pub chunks: Vec<Chunk>,
    /// Bytes of the data.
    pub size: u64,
}

/// Lower-case hex.
#[must_use]
pub fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sha256 of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    first_digest(digest(&SHA256, bytes).as_ref())
}

/// Reads a `layer.json` whose sha256 is `layer`.
///
/// # Errors
/// What is wrong with it.
pub fn manifest(layer: &str, bytes: &[u8]) -> Result<Manifest, String> {
    if hex(&sha256(bytes)) != layer {
        return Err("layer.json does not have the layer's digest".into());
    }
    let manifest: Manifest =
        serde_json::from_slice(bytes).map_err(|error| format!("layer.json: {error}"))?;
    if manifest.format != "dsec.layer.v1" || manifest.chunk_size != CHUNK {
        return Err("layer.json is of another version".into());
    }
    Ok(manifest)
}

impl Index {
    /// Reads an index that anybody may have written, and holds it against its layer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(raw: &[u8], manifest: &Manifest) -> Result<Self, String> {
        Self::of(raw, manifest.data.size, &manifest.chunks_sha256)
            .map_err(|why| format!("the chunk index is damaged: {why}"))
    }

    fn of(raw: &[u8], size: u64, chunks_sha256: &str) -> Result<Self, &'static str> {
        let (head, rest) = raw
            .split_at_checked(HEAD)
            .ok_or("it is shorter than its head")?;
        if &head[..8] != MAGIC || u64::from(number(&head[8..])) != CHUNK {
            return Err("it is of another version");
        }
        if long(&head[16..]) != chunks(size) {
            return Err("it has not as many chunks as the layer");
        }
        let blob_bytes = (number(&head[12..]) as usize).saturating_mul(DIGEST);
        let (blobs, entries) = rest
            .split_at_checked(blob_bytes)
            .ok_or("its length is not what its head says")?;
        if entries.len() as u64 != chunks(size).saturating_mul(ENTRY as u64) {
            return Err("its length is not what its head says");
        }
        let index = Self {
            blobs: blobs.chunks_exact(DIGEST).map(first_digest).collect(),
            chunks: entries.chunks_exact(ENTRY).map(entry).collect(),
            size,
        };
        index.check(chunks_sha256)?;
        Ok(index)
    }

    fn check(&self, chunks_sha256: &str) -> Result<(), &'static str> {
        let mut names: Vec<&Digest> = self.blobs.iter().collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("it names a blob twice");
        }
        let mut all = Context::new(&SHA256);
        for (place, chunk) in self.chunks.iter().enumerate() {
            if !chunk.is_placed(self.blobs.len(), self.length(place as u64)) {
                return Err("a chunk has no place");
            }
            all.update(&chunk.digest);
        }
        if hex(&first_digest(all.finish().as_ref())) != chunks_sha256 {
            return Err("its chunks are not those of the layer");
        }
        Ok(())
    }

    /// Bytes that a chunk has.
    #[must_use]
    pub fn length(&self, chunk: u64) -> usize {
        self.size.saturating_sub(chunk * CHUNK).min(CHUNK) as usize
    }
}

impl Chunk {
    fn is_placed(&self, blobs: usize, raw: usize) -> bool {
        let stored = self.length as usize;
        if stored == 0 {
            // Whether it is zeros its digest says, when it is filled.
            return self.blob == 0 && self.offset == 0;
        }
        let end = self.offset.checked_add(u64::from(self.length));
        (self.blob as usize) < blobs && stored <= raw && end.is_some_and(|end| end <= MAX_BLOB)
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn long(bytes: &[u8]) -> u64 {
    u64::from(number(bytes)) | u64::from(number(&bytes[4..])) << 32
}

fn first_digest(bytes: &[u8]) -> Digest {
    let mut out = [0; DIGEST];
    out.copy_from_slice(&bytes[..DIGEST]);
    out
}

fn entry(bytes: &[u8]) -> Chunk {
    Chunk {
        digest: first_digest(bytes),
        blob: number(&bytes[32..]),
        length: number(&bytes[36..]),
        offset: long(&bytes[40..]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn cases(name: &str) -> Vec<Value> {
        let root = env!("CARGO_MANIFEST_DIR");
        let path = format!("{root}/../../tests/golden/chunk_index.json");
        let all: Value =
            serde_json::from_slice(&std::fs::read(path).expect("golden")).expect("JSON");
        all[name].as_array().expect("cases").clone()
    }

    fn bytes(text: &Value) -> Vec<u8> {
        let text = text.as_str().expect("hex");
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    /// An index is that of a layer when its digests and its size are. A chunk that only claims to be zeros is found out
    /// when it is filled.
    #[test]
    fn golden_layers() {
        let zeros = |index: Index| {
            let mut chunks = index.chunks.iter().enumerate();
            chunks.all(|(place, chunk)| {
                chunk.length > 0 || chunk.digest == sha256(&vec![0; index.length(place as u64)])
            })
        };
        let mut good = 0;
        for case in cases("layers") {
            let size = case["data_size"].as_u64().expect("a size");
            let digest = case["chunks_sha256"].as_str().expect("a digest");
            let is_its = Index::of(&bytes(&case["hex"]), size, digest).is_ok_and(zeros);
            assert_eq!(case["is_its"], is_its, "{}", case["name"]);
            good += usize::from(is_its);
        }
        assert!(good > 1);
    }

    /// What stands beside a golden file is what it means.
    #[test]
    fn golden_chunks() {
        for case in cases("good") {
            let raw = bytes(&case["hex"]);
            let listed = case["chunks"].as_array().expect("chunks");
            let blobs = case["blobs"].as_array().expect("blobs").len();
            let read = raw[HEAD + blobs * DIGEST..].chunks_exact(ENTRY).map(entry);
            assert_eq!(read.len(), listed.len());
            for (chunk, told) in read.zip(listed) {
                assert_eq!(hex(&chunk.digest), told["sha256"]);
                assert_eq!(chunk.blob, told["blob"]);
                assert_eq!(chunk.length, told["stored_length"]);
                assert_eq!(chunk.offset, told["offset"]);
            }
        }
    }

    /// Whatever is damaged is refused, at every size that it might claim to have.
    #[test]
    fn golden_bad_ones() {
        for case in cases("bad") {
            let raw = bytes(&case["hex"]);
            for count in 0..4 {
                let from = raw.len().saturating_sub(count * ENTRY);
                let entries = raw[from..].chunks_exact(ENTRY);
                let digests: Vec<u8> = entries.flat_map(|entry| entry[..DIGEST].to_vec()).collect();
                let read = Index::of(&raw, count as u64 * CHUNK, &hex(&sha256(&digests)));
                assert!(read.is_err(), "{}", case["name"]);
            }
        }
    }
}
