//! How fast layers fill. Not part of any run:
//! `cargo test --release -p dsec-node-bin --test loading speed -- --ignored --nocapture --test-threads 1`

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::layer::open;
use super::node::Node;

const SIZE: usize = 64 << 20;
const MISSES: usize = 400;

fn mib_s(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / took.as_secs_f64()
}

fn drain(mut file: File) -> (usize, Duration) {
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    let begun = Instant::now();
    loop {
        match file.read(&mut buffer).expect("read") {
            0 => return (bytes, begun.elapsed()),
            read => bytes += read,
        }
    }
}

/// One reader from end to end, beside the store's own file and the same layer once it is filled.
#[test]
#[ignore = "a measurement"]
fn speed_sequential() {
    let mut node = Node::start(60);
    let layer = node.publish(SIZE);
    let mut out = std::io::stdout();
    let (bytes, took) = drain(File::open(&layer.blob).expect("opened"));
    let store = mib_s(bytes, took);
    node.open(&layer).expect("opened");
    let mount = layer.mount();
    let (bytes, took) = drain(open(&mount));
    assert_eq!(bytes, SIZE);
    let unfilled = mib_s(bytes, took);
    let (counts, _) = node.going();
    let again = layer.mount();
    let (bytes, took) = drain(open(&again));
    let filled = mib_s(bytes, took);
    writeln!(
        out,
        "sequential: store {store:.0} MiB/s, unfilled {unfilled:.0}, filled {filled:.0}; {counts:?}"
    )
    .expect("told");
}

/// Single reads strewn over a layer: each is a miss.
#[test]
#[ignore = "a measurement"]
fn speed_misses() {
    let mut node = Node::start(60);
    let layer = node.publish(SIZE);
    node.open(&layer).expect("opened");
    let file = open(&layer.mount());
    let mut took: Vec<Duration> = Vec::new();
    let step = SIZE / MISSES / 4096 * 4096;
    for number in 0..MISSES {
        // In no order that looks like reading on.
        let place = (number * 171) % MISSES * step;
        let begun = Instant::now();
        let mut page = [0; 4096];
        file.read_exact_at(&mut page, place as u64).expect("read");
        took.push(begun.elapsed());
        assert!(page == layer.content[place..place + 4096]);
    }
    took.sort_unstable();
    let at = |thousandth: usize| took[took.len() * thousandth / 1000].as_micros();
    let mut out = std::io::stdout();
    writeln!(out, "misses: p50 {} us, p99 {} us", at(500), at(990)).expect("told");
    writeln!(out, "{:?}", node.going().0).expect("told");
}
