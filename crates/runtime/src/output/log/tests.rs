use super::*;
use crate::output::{kept_tail, shrink, SEGMENT, TAIL};
use std::io::Write;

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dsec-log-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pipe() -> (OwnedFd, File) {
    let (reader, writer) = sys::pipe(libc::O_NONBLOCK).expect("a pipe");
    (reader, writer.into())
}

fn fill(log: &Log, bytes: &[u8]) {
    let (reader, mut writer) = pipe();
    for part in bytes.chunks(32 << 10) {
        writer.write_all(part).expect("the pipe has room");
        while let Pull::Bytes(_) = log.pull(&reader, 1 << 20).expect("is moved") {}
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 7 % 251) as u8).collect()
}

/// What stands at an offset, whichever way it is sent.
fn bytes_at(log: &Log, offset: u64, most: usize) -> Option<Vec<u8>> {
    match log.read(offset, u64::MAX, most).expect("reads") {
        Read::Bytes(bytes) => Some(bytes),
        Read::Part(part) => {
            let mut bytes = vec![0; part.length as usize];
            let read = part.file.read_exact_at(&mut bytes, part.start);
            read.expect("the segment has it");
            Some(bytes)
        }
        Read::Gap(_) | Read::Nothing => None,
    }
}

/// A part stays what it was after its segment is dropped, and no file is held open for what nobody reads.
#[test]
fn part_outlives_its_segment() {
    let scratch = Scratch::new("part");
    let log = Log::new(&scratch.0, 1);
    let bytes = pattern(100_000);
    fill(&log, &bytes);
    let Read::Part(part) = log.read(1000, u64::MAX, 90_000).expect("reads") else {
        panic!("so many bytes are not read");
    };
    std::fs::remove_file(log.path(0)).expect("is there");
    let mut back = vec![0; part.length as usize];
    let read = part.file.read_exact_at(&mut back, part.start);
    read.expect("the segment has it");
    assert!(back == bytes[1000..91_000]);
    drop(part);
    assert!(log.reading.borrow().1.upgrade().is_none());
}

/// A program that writes nothing leaves no file behind.
#[test]
fn nothing_makes_no_file() {
    let scratch = Scratch::new("nothing");
    let directory = scratch.0.join("exec");
    let log = Log::new(&directory, 1);
    let (reader, writer) = pipe();
    assert_eq!(log.pull(&reader, 1024).expect("looks"), Pull::Empty);
    drop(writer);
    assert_eq!(log.pull(&reader, 1024).expect("looks"), Pull::End);
    assert!(!directory.exists());
}

/// Bytes come back exactly, over the edges of segments, and a successor finds the same total.
#[test]
fn bytes_are_exact_across_segments() {
    let scratch = Scratch::new("exact");
    let bytes = pattern(SEGMENT as usize + 100_000);
    fill(&Log::new(&scratch.0, 1), &bytes);
    let log = Log::find(&scratch.0, 1);
    assert_eq!(log.total(), bytes.len() as u64);
    let mut back = Vec::new();
    while let Some(part) = bytes_at(&log, back.len() as u64, 60_000) {
        back.extend(part);
    }
    assert!(back == bytes);
    fill(&log, b"more");
    assert_eq!(
        bytes_at(&log, bytes.len() as u64, 10),
        Some(b"more".to_vec())
    );
}

/// After shrinking, the last 64 KiB are still at their old offsets.
#[test]
fn shrunk_keeps_offsets() {
    let scratch = Scratch::new("shrunk");
    let bytes = pattern(3 * TAIL as usize);
    fill(&Log::new(&scratch.0, 2), &bytes);
    shrink(&scratch.0).expect("shrinks");
    let log = Log::find(&scratch.0, 2);
    assert_eq!(log.total(), bytes.len() as u64);
    let read = log.read(0, u64::MAX, 10).expect("reads");
    assert!(matches!(read, Read::Gap(to) if to == 2 * TAIL));
    let (first, tail) = kept_tail(&scratch.0, 2, u64::MAX).expect("reads");
    assert_eq!(first, 2 * TAIL);
    assert!(tail == bytes[first as usize..]);
}
