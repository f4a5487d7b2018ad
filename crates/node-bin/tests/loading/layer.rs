//! A layer in a store, and its sparse form on a node.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dsec_fetcher::index::{hex, sha256};
use dsec_proto::loading::CHUNK;
use rustix::mount::{
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, FsMountFlags,
    FsOpenFlags, MountAttrFlags,
};

pub struct Layer {
    pub digest: String,
    /// `layer.json`, `metadata`, `chunks`, `data`, `filled`.
    pub directory: PathBuf,
    /// What its file `f` holds.
    pub content: Vec<u8>,
    /// What its `data` is to hold.
    pub data: Vec<u8>,
    /// The one blob of the store.
    pub blob: PathBuf,
}

/// Bytes that repeat nowhere, every other half MiB of them such that they can be compressed.
fn content(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = match (bytes.len() >> 19) % 2 {
            0 => state | 1,
            _ => bytes.len() as u64 | 1,
        };
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

impl Layer {
    /// A layer with one file of `size` bytes, published to `store`, and here without any of its data.
    pub fn publish(store: &Path, layers: &Path, size: usize) -> Self {
        let content = content(size);
        let made = layers.join("made");
        fs::create_dir_all(made.join("tree")).expect("a directory");
        fs::write(made.join("tree/f"), &content).expect("written");
        let mkfs = Command::new("mkfs.erofs")
            .env("SOURCE_DATE_EPOCH", "0")
            .args(["--quiet", "--chunksize=4096", "-T0"])
            .arg("-Ud5ec0000-0000-4000-8000-000000000000")
            .arg(format!("--blobdev={}", made.join("data").display()))
            .args([made.join("metadata"), made.join("tree")])
            .output()
            .expect("mkfs.erofs is installed");
        assert!(mkfs.status.success(), "{mkfs:?}");
        fs::remove_dir_all(made.join("tree")).expect("removed");
        let data = fs::read(made.join("data")).expect("read");
        let (blob, index, chunks) = pack(&data);
        let blob_name = hex(&sha256(&blob));
        fs::create_dir_all(store.join("blobs")).expect("a directory");
        let blob_path = store.join("blobs").join(&blob_name);
        fs::write(&blob_path, blob).expect("written");
        let metadata = fs::read(made.join("metadata")).expect("read");
        let manifest = format!(
            r#"{{"chunk_size":{CHUNK},"chunks_sha256":"{}","data":{{"sha256":"{}","size":{}}},"format":"dsec.layer.v1","metadata":{{"sha256":"{}","size":{}}}}}"#,
            hex(&sha256(&chunks)),
            hex(&sha256(&data)),
            data.len(),
            hex(&sha256(&metadata)),
            metadata.len(),
        );
        let digest = hex(&sha256(manifest.as_bytes()));
        fs::write(made.join("layer.json"), manifest).expect("written");
        fs::write(made.join("chunks"), index).expect("written");
        fs::write(made.join("filled"), b"").expect("written");
        fs::remove_file(made.join("data")).expect("removed");
        let sparse = File::create(made.join("data")).expect("made");
        sparse.set_len(data.len() as u64).expect("a length");
        let directory = layers.join(&digest);
        fs::rename(made, &directory).expect("renamed");
        Self {
            digest,
            directory,
            content,
            data,
            blob: blob_path,
        }
    }

    pub fn mount(&self) -> OwnedFd {
        let mounted = || {
            let erofs = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            let fs = erofs.as_fd();
            fsconfig_set_string(fs, "source", self.directory.join("metadata"))?;
            fsconfig_set_string(fs, "device", self.directory.join("data"))?;
            fsconfig_set_flag(fs, "directio")?;
            fsconfig_create(fs)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
            fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        mounted().expect("mounted")
    }

    /// Wants all of its data, also what no file of its has.
    pub fn want_all(&self) {
        let direct = File::open(self.directory.join("data")).expect("opened");
        for chunk in 0..(self.data.len() as u64).div_ceil(CHUNK) {
            let read = direct.read_exact_at(&mut [0; 1], chunk * CHUNK);
            read.expect("read");
        }
    }

    /// What of its data is here.
    pub fn here(&self) -> Vec<u8> {
        fs::read(self.directory.join("data")).expect("read")
    }
}

/// The file of a mount.
pub fn open(mount: &OwnedFd) -> File {
    let path = format!("/proc/self/fd/{}/f", mount.as_raw_fd());
    File::open(path).expect("opened")
}

/// One blob with all chunks, their index, and their digests.
fn pack(data: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut blob, mut entries, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    for raw in data.chunks(CHUNK as usize) {
        let frame = zstd::bulk::compress(raw, 1).expect("compressed");
        let stored = if frame.len() < raw.len() { &frame } else { raw };
        digests.extend(sha256(raw));
        entries.extend(sha256(raw));
        entries.extend(0u32.to_le_bytes());
        entries.extend((stored.len() as u32).to_le_bytes());
        entries.extend((blob.len() as u64).to_le_bytes());
        blob.extend_from_slice(stored);
    }
    let count = (entries.len() / 48) as u64;
    let mut index = b"DSCHNK01".to_vec();
    index.extend((CHUNK as u32).to_le_bytes());
    index.extend(1u32.to_le_bytes());
    index.extend(count.to_le_bytes());
    index.extend(sha256(&blob));
    index.extend(entries);
    (blob, index, digests)
}
