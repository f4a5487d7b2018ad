//! Stores that are away, or lie; and how often they are asked.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::layer::open;
use super::node::Node;
use super::readers::{Read, Readers};

const SIZE: usize = 8 << 20;

fn errno(read: &Read) -> Option<i32> {
    read.as_ref().err().and_then(std::io::Error::raw_os_error)
}

/// A store that is away makes readers wait; back in time, they read on.
#[test]
fn away_and_back() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    let (blobs, away) = (node.dir.join("store/blobs"), node.dir.join("store/away"));
    fs::rename(&blobs, &away).expect("renamed");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let readers = Readers::start(open(&mount), vec![(0, 4096), (4 << 20, 4096)]);
    node.until("it has been tried", |counts, _| counts.retries > 1);
    fs::rename(&away, &blobs).expect("renamed");
    readers.are_exact(&layer);
}

/// Away for too long it is an error of these reads, never zeros; a later read finds it back.
#[test]
fn away_for_too_long() {
    let mut node = Node::start(5);
    let layer = node.publish(SIZE);
    let (blobs, away) = (node.dir.join("store/blobs"), node.dir.join("store/away"));
    fs::rename(&blobs, &away).expect("renamed");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let readers = Readers::start(open(&mount), vec![(0, 4096), (4 << 20, 4096)]);
    for read in readers.finish() {
        assert_eq!(
            errno(&read),
            Some(libc::EIO),
            "{:?}",
            read.map(|bytes| bytes.len())
        );
    }
    fs::rename(&away, &blobs).expect("renamed");
    Readers::start(open(&mount), vec![(0, 4096), (4 << 20, 4096)]).are_exact(&layer);
}

/// A disk that takes no line of a log costs the lines, and neither a reader nor the part that tells.
#[test]
fn logs_on_a_full_disk() {
    let mut node = Node::with_logs(&["store"], 30, Some("/dev/full"));
    let layer = node.publish(SIZE);
    let mut wrong = fs::read(&layer.blob).expect("read");
    wrong[1000] ^= 1;
    fs::write(&layer.blob, &wrong).expect("written");
    node.open(&layer).expect("opened");
    let (holder, fetcher) = (node.pid("holder"), node.pid("fetcher"));
    let mount = layer.mount();
    let reads = Readers::start(open(&mount), vec![(0, 4096), (4 << 20, 4096)]).finish();
    assert_eq!(errno(&reads[0]), Some(libc::EIO));
    assert!(reads[1].is_ok());
    node.until("told", |counts, _| counts.corrupt >= 2);
    assert_eq!((node.pid("holder"), node.pid("fetcher")), (holder, fetcher));
}

/// A chunk with other bytes is fetched once more and then an error of its readers; the others are served, and so is it
/// once the store has it right.
#[test]
fn corrupt() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    let right = fs::read(&layer.blob).expect("read");
    let mut wrong = right.clone();
    wrong[1000] ^= 1;
    fs::write(&layer.blob, &wrong).expect("written");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let readers = Readers::start(open(&mount), vec![(0, 4096), (4 << 20, 4096)]);
    let reads = readers.finish();
    assert_eq!(errno(&reads[0]), Some(libc::EIO));
    assert!(reads[1]
        .as_ref()
        .is_ok_and(|read| read == &layer.content[4 << 20..(4 << 20) + 4096]));
    node.until("told", |counts, _| {
        counts.corrupt >= 2 && counts.errors >= 1
    });
    let log = fs::read_to_string(node.dir.join("fetcher.log")).expect("a log");
    assert!(log.contains("corrupt_chunk") && log.contains(&layer.digest));
    let mended = layer.blob.with_extension("new");
    fs::write(&mended, &right).expect("written");
    fs::rename(&mended, &layer.blob).expect("renamed");
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
}

/// Two chunks of one request that the first store has wrong are fetched from the second.
#[test]
fn corrupt_in_one_of_two() {
    let mut node = Node::with_stores(&["bad", "store"], 30);
    let layer = node.publish(SIZE);
    let mut wrong = fs::read(&layer.blob).expect("read");
    // The first two chunks cannot be compressed.
    wrong[1000] ^= 1;
    wrong[300_000] ^= 1;
    let blobs = node.dir.join("bad/blobs");
    fs::create_dir_all(&blobs).expect("made");
    let name = layer.blob.file_name().expect("a name");
    fs::write(blobs.join(name), &wrong).expect("written");
    node.open(&layer).expect("opened");
    let direct = fs::File::open(layer.directory.join("data")).expect("opened");
    let mut read = vec![0; 512 << 10];
    direct.read_exact_at(&mut read, 0).expect("read");
    assert!(read == layer.data[..read.len()]);
    node.until("told", |counts, _| counts.corrupt == 2);
}

/// However many want the same range, it is fetched once.
#[test]
fn one_fetch_for_all() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    let (blobs, away) = (node.dir.join("store/blobs"), node.dir.join("store/away"));
    fs::rename(&blobs, &away).expect("renamed");
    node.open(&layer).expect("opened");
    // A mount each, so that none waits for another's page.
    let mounts: Vec<_> = (0..40).map(|_| layer.mount()).collect();
    let readers: Vec<_> = mounts
        .iter()
        .map(|mount| Readers::start(open(mount), vec![(1 << 20, 4096)]))
        .collect();
    node.until("all wait", |counts, _| counts.waiting == 40);
    fs::rename(&away, &blobs).expect("renamed");
    for readers in readers {
        readers.are_exact(&layer);
    }
    node.until("told", |counts, _| counts.fetched_bytes > 0);
    let (counts, layers) = node.going();
    assert_eq!(counts.fetched_bytes, layers[0].filled_bytes);
    assert!(layers[0].filled_bytes <= 1 << 20, "{layers:?}");
    assert_eq!((counts.misses, counts.errors), (40, 0));
}

/// A layer whose files are not those of its digest is not opened; neither is one whose store the fetcher may not read
/// given any bytes.
#[test]
fn refused() {
    let mut node = Node::start(1);
    let layer = node.publish(1 << 20);
    let index = layer.directory.join("chunks");
    let mut bytes = fs::read(&index).expect("read");
    bytes[60] ^= 1;
    fs::write(&index, &bytes).expect("written");
    let why = node.open(&layer).expect_err("refused");
    assert!(why.contains("chunk index"), "{why}");
    bytes[60] ^= 1;
    fs::write(&index, &bytes).expect("written");
    fs::set_permissions(&layer.blob, fs::Permissions::from_mode(0o600)).expect("changed");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let reads = Readers::start(open(&mount), vec![(0, 4096)]).finish();
    assert_eq!(errno(&reads[0]), Some(libc::EIO), "it is another user");
}

/// A blob that is cut short is an error of those who want what is missing, after the store had its time; the others are
/// served, and so are they once it is whole.
#[test]
fn cut_short() {
    let mut node = Node::start(2);
    let layer = node.publish(SIZE);
    let right = fs::read(&layer.blob).expect("read");
    fs::write(&layer.blob, &right[..right.len() / 2]).expect("written");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let last = (SIZE - 4096) as u64;
    let reads = Readers::start(open(&mount), vec![(0, 4096), (last, 4096)]).finish();
    assert!(reads[0]
        .as_ref()
        .is_ok_and(|read| read == &layer.content[..4096]));
    assert_eq!(errno(&reads[1]), Some(libc::EIO));
    let mended = layer.blob.with_extension("new");
    fs::write(&mended, &right).expect("written");
    fs::rename(&mended, &layer.blob).expect("renamed");
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
}

/// The store stops letting the fetcher in: what is here is read on, the rest is an error and never zeros; let in again it
/// is read.
#[test]
fn permission_lost_in_the_middle() {
    let mut node = Node::start(2);
    let layer = node.publish(SIZE);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, 4096)]).are_exact(&layer);
    fs::set_permissions(node.dir.join("store"), fs::Permissions::from_mode(0o700))
        .expect("changed");
    fs::set_permissions(&layer.blob, fs::Permissions::from_mode(0o000)).expect("changed");
    // Its open files are gone with it.
    node.kill_one("fetcher");
    let reads = Readers::start(open(&mount), vec![(4 << 20, 4096)]).finish();
    assert_eq!(errno(&reads[0]), Some(libc::EIO));
    let again = layer.mount();
    Readers::start(open(&again), vec![(0, 4096)]).are_exact(&layer);
    fs::set_permissions(&layer.blob, fs::Permissions::from_mode(0o644)).expect("changed");
    fs::set_permissions(node.dir.join("store"), fs::Permissions::from_mode(0o755))
        .expect("changed");
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
}

/// A reader that waits for a store that is away can be killed, and nobody waits any more.
#[test]
fn a_waiting_reader_can_be_killed() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    fs::rename(node.dir.join("store/blobs"), node.dir.join("store/away")).expect("renamed");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let mut reader = std::process::Command::new("cat")
        .stdin(open(&mount))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("begun");
    node.until("it waits", |counts, _| counts.waiting > 0);
    reader.kill().expect("killed");
    reader.wait().expect("dead");
}

/// What is counted is told of each layer and of all: misses and how long they waited, requests, bytes as stored and as
/// read, and what is here.
#[test]
fn counted() {
    let mut node = Node::start(30);
    let (one, two) = (node.publish(SIZE), node.publish(SIZE / 2));
    for layer in [&one, &two] {
        node.open(layer).expect("opened");
        let mount = layer.mount();
        Readers::start(open(&mount), vec![(0, 4096)]).are_exact(layer);
    }
    node.until("told", |_, layers| {
        let told = |layer: &dsec_proto::loading::LayerLoading| layer.counts.fetched_bytes > 0;
        layers.len() == 2 && layers.iter().all(told)
    });
    let report = node.report();
    assert!(report.fetcher && !report.more);
    assert_eq!((report.counts.waiting, report.oldest_wait_ms), (0, 0));
    let sum = |of: fn(&dsec_proto::loading::LayerLoading) -> u64| {
        report.layers.iter().map(of).sum::<u64>()
    };
    assert_eq!(report.counts.misses, sum(|layer| layer.counts.misses));
    assert_eq!(report.counts.requests, sum(|layer| layer.counts.requests));
    assert_eq!(report.counts.fetched_bytes, sum(|layer| layer.filled_bytes));
    for (layer, told) in [&one, &two].iter().zip(&report.layers) {
        assert_eq!(
            (&told.digest, told.bytes),
            (&layer.digest, layer.data.len() as u64)
        );
        assert!(told.counts.misses > 0 && told.counts.wait_p99_us >= told.counts.wait_p50_us);
        assert!(told.counts.wait_total_us > 0 && told.counts.fetch_p50_us > 0);
        assert!(told.counts.stored_bytes > 0 && told.filled_bytes < told.bytes);
    }
}
