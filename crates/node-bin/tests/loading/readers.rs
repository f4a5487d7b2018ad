//! Many readers of one layer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread;

use super::layer::Layer;
use super::node::PATIENCE;

/// What one of them read.
pub type Read = io::Result<Vec<u8>>;

/// Threads that each read what `parts` says, all at once.
pub struct Readers {
    parts: Vec<(u64, usize)>,
    done: Receiver<(usize, Read)>,
}

impl Readers {
    pub fn start(file: File, parts: Vec<(u64, usize)>) -> Self {
        let file = Arc::new(file);
        let (send, done) = channel();
        for (number, (offset, length)) in parts.iter().copied().enumerate() {
            let (file, send) = (Arc::clone(&file), send.clone());
            thread::spawn(move || {
                let mut bytes = vec![0; length];
                let read = file.read_exact_at(&mut bytes, offset).map(|()| bytes);
                let _ = send.send((number, read));
            });
        }
        Self { parts, done }
    }

    /// What each of them read, in order.
    pub fn finish(self) -> Vec<Read> {
        let mut reads: Vec<Option<Read>> = self.parts.iter().map(|_| None).collect();
        for _ in &self.parts {
            let (number, read) = self.done.recv_timeout(PATIENCE).expect("a reader hangs");
            reads[number] = Some(read);
        }
        reads.into_iter().flatten().collect()
    }

    /// All of them read what the layer holds.
    pub fn are_exact(self, layer: &Layer) {
        let parts = self.parts.clone();
        for ((offset, length), read) in parts.into_iter().zip(self.finish()) {
            let from = offset as usize;
            let read = read.unwrap_or_else(|error| panic!("at {offset}: {error}"));
            assert!(read == layer.content[from..from + length], "at {offset}");
        }
    }
}

/// `count` parts of a file, strewn over it.
pub fn strewn(count: usize, size: usize, length: usize) -> Vec<(u64, usize)> {
    let places = (size - length) / 4096;
    let place = |number: usize| (number.wrapping_mul(2_654_435_761) % places) * 4096;
    (0..count)
        .map(|number| (place(number) as u64, length))
        .collect()
}
