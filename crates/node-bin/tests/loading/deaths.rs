//! Whoever dies, readers wait and then read what is right.

use std::fs;
use std::os::unix::fs::FileExt;

use dsec_proto::loading::CHUNK;

use super::layer::open;
use super::node::Node;
use super::readers::{strewn, Readers};

const SIZE: usize = 32 << 20;

/// 100 readers, and holder and fetcher killed while they wait and again while they read: every byte is right, and nobody
/// is left waiting.
#[test]
fn killed_in_the_middle() {
    let mut node = Node::start(60);
    let layer = node.publish(SIZE);
    let (blobs, away) = (node.dir.join("store/blobs"), node.dir.join("store/away"));
    fs::rename(&blobs, &away).expect("renamed");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let readers = Readers::start(open(&mount), strewn(100, SIZE, 1 << 20));
    node.until("they wait", |counts, _| counts.waiting > 8);
    for name in ["fetcher", "holder", "fetcher", "holder"] {
        node.kill_one(name);
        node.until("they wait on", |counts, _| counts.waiting > 8);
    }
    fs::rename(&away, &blobs).expect("renamed");
    for name in ["fetcher", "holder"] {
        node.kill_one(name);
    }
    readers.are_exact(&layer);
    node.until("nobody waits", |counts, _| counts.waiting == 0);
}

/// Fetcher and holder killed together, and the holder's successor killed before there is a fetcher.
#[test]
fn killed_together() {
    let mut node = Node::start(60);
    let layer = node.publish(SIZE);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let readers = Readers::start(open(&mount), strewn(100, SIZE, 1 << 20));
    node.kill_one("fetcher");
    node.kill_one("holder");
    node.kill_one("holder");
    readers.are_exact(&layer);
    node.until("nobody waits", |counts, _| counts.waiting == 0);
}

/// All of a layer read: its record goes, its mark too, and it is what was published. Opened again nobody is asked.
#[test]
fn complete() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
    // What mkfs.erofs put between the files is read by nobody: as much as the reader did not want is asked for here.
    layer.want_all();
    node.until("complete", |_, layers| layers.is_empty());
    assert!(!layer.directory.join("filled").exists());
    assert!(layer.here() == layer.data);
    node.kill_one("fetcher");
    assert_eq!(node.open(&layer), Ok(None), "without anybody's help");
    let before = node.going().0;
    let again = layer.mount();
    Readers::start(open(&again), vec![(0, SIZE)]).are_exact(&layer);
    let after = node.going().0;
    let asked = |counts: &dsec_proto::loading::LoadingCounts| counts.hits + counts.misses;
    assert_eq!(asked(&before), asked(&after), "nobody is in the way");
    // Another mount of the same files sent an event for each read before.
    assert!(asked(&before) > 0);
}

/// The number of a layer that became complete is no other's, also after the holder's death, and letting go of one layer
/// leaves another alone: whoever has that mounted would read zeros.
#[test]
fn numbers_are_not_used_again() {
    let mut node = Node::start(30);
    let first = node.publish(1 << 20);
    let of_first = node.open(&first).expect("opened").expect("not complete");
    first.want_all();
    node.until("complete", |_, layers| layers.is_empty());
    node.kill_one("holder");
    let second = node.publish(2 << 20);
    let of_second = node.open(&second).expect("opened").expect("not complete");
    assert_ne!(of_first, of_second);
    let mount = second.mount();
    node.close(&first, of_first);
    node.close(&first, of_second);
    Readers::start(open(&mount), vec![(0, 2 << 20)]).are_exact(&second);
}

/// A fetcher that refuses a layer which a dead holder had opened gives its readers errors, never zeros; once the layer is
/// right again it is taken and read.
#[test]
fn refused_while_it_is_mounted() {
    let mut node = Node::start(30);
    let layer = node.publish(1 << 20);
    let number = node.open(&layer).expect("opened");
    let mount = layer.mount();
    let index = layer.directory.join("chunks");
    let right = fs::read(&index).expect("read");
    fs::write(&index, b"damaged").expect("written");
    node.kill_one("holder");
    node.says("holder", "cannot be filled");
    let reads = Readers::start(open(&mount), vec![(0, 4096)]).finish();
    let error = reads[0].as_ref().expect_err("nothing is there");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    node.open(&layer).expect_err("still refused");
    fs::write(&index, &right).expect("written");
    assert_eq!(node.open(&layer), Ok(number));
    Readers::start(open(&mount), vec![(0, 1 << 20)]).are_exact(&layer);
}

/// What a crash leaves is trusted as far as its record goes: the record claims only what was on disk before it, and what
/// it does not claim is fetched again.
#[test]
fn crashed() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    let number = node.open(&layer).expect("opened").expect("not complete");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, 8 << 20)]).are_exact(&layer);
    drop(mount);
    node.close(&layer, number);
    let record = layer.directory.join("filled");
    let end = std::time::Instant::now() + super::node::PATIENCE;
    while fs::metadata(&record).expect("there").len() == 0 {
        assert!(std::time::Instant::now() < end, "no record");
        std::thread::yield_now();
    }
    node.restart();
    let bits = fs::read(&record).expect("read").split_off(16);
    let data = fs::File::options()
        .write(true)
        .open(layer.directory.join("data"))
        .expect("opened");
    let mut trusted = 0;
    for chunk in 0..layer.data.len() / CHUNK as usize {
        let from = chunk * CHUNK as usize;
        let has = bits[chunk / 8] >> (chunk % 8) & 1 == 1;
        if has {
            trusted += 1;
            let here = &layer.here()[from..from + CHUNK as usize];
            assert!(here == &layer.data[from..from + CHUNK as usize]);
        } else {
            // As if its write had not reached the disk.
            data.write_all_at(&[0xee; CHUNK as usize], from as u64)
                .expect("written");
        }
    }
    assert!(trusted >= 32, "{trusted}");
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
    let (counts, _) = node.going();
    assert!(counts.hits > 0, "what is recorded is not fetched again");
}

/// A layer that is fetched again while the former files are still mounted: both are filled.
#[test]
fn fetched_again() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    let first = node.open(&layer).expect("opened");
    let mount = layer.mount();
    fs::rename(&layer.directory, node.dir.join("removed")).expect("renamed");
    let again = node.publish(SIZE);
    assert_eq!(layer.digest, again.digest);
    let second = node.open(&again).expect("opened");
    assert_ne!(first, second);
    assert_eq!(node.open(&again), Ok(second));
    let other = again.mount();
    Readers::start(open(&other), vec![(0, 1 << 20)]).are_exact(&again);
    Readers::start(open(&mount), vec![(0, SIZE)]).are_exact(&layer);
    Readers::start(open(&other), vec![(0, SIZE)]).are_exact(&again);
}

/// A layer whose directory is deleted while it is mounted is filled on, also by successors.
#[test]
fn removed_while_it_is_read() {
    let mut node = Node::start(30);
    let layer = node.publish(SIZE);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let file = open(&mount);
    fs::remove_dir_all(&layer.directory).expect("removed");
    node.kill_one("fetcher");
    node.kill_one("holder");
    Readers::start(file, vec![(0, SIZE)]).are_exact(&layer);
}
