//! Every target over its seeds and some thousands of mutations of them: the same ones each time, and nothing but the
//! toolchain that there is. `make fuzz` goes on for longer, with coverage to lead it.

mod allocations;
mod mutate;

use std::path::{Path, PathBuf};

use dsec_fuzz::{Target, TARGETS};

/// Mutations of each target; more by `DSEC_FUZZ_MUTATIONS`.
const MUTATIONS: u64 = 4000;
/// Memory that a target may take at a time, beside some of its input's size: buffers that are there for any input.
const ROOM: usize = 12 << 20;
const ROOM_PER_BYTE: usize = 64;

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(corpus.join(name))
        .unwrap_or_else(|error| panic!("{name} has no seeds: {error}"))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("is read");
    paths.iter().map(read).collect()
}

fn check(target: &Target, bytes: &[u8]) {
    let (outcome, most) = allocations::most(|| std::panic::catch_unwind(|| (target.run)(bytes)));
    let shown = bytes.escape_ascii();
    assert!(outcome.is_ok(), "{}: {shown}", target.name);
    let room = ROOM + ROOM_PER_BYTE * bytes.len();
    assert!(most < room, "{} takes {most} bytes: {shown}", target.name);
}

fn drive(names: &[&str]) {
    let count = std::env::var("DSEC_FUZZ_MUTATIONS").ok();
    let count = count.map_or(MUTATIONS, |text| text.parse().expect("a number"));
    for target in TARGETS.iter().filter(|it| names.contains(&it.name)) {
        let seeds = seeds(target.name);
        seeds.iter().for_each(|seed| check(target, seed));
        check(target, b"");
        for number in 0..count {
            check(target, &mutate::mutated(&seeds, number));
        }
    }
}

macro_rules! tests {
    ($($name:ident: $($target:ident)*;)*) => {
        $(
            #[test]
            fn $name() {
                drive(&[$(stringify!($target)),*]);
            }
        )*

        /// No target is left out.
        #[test]
        fn all_are_driven() {
            let driven = [$($(stringify!($target)),*),*];
            let all: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(driven[..], all[..]);
        }
    };
}

tests! {
    frames_and_packets: frames requests keeper_packets peer_packets;
    first_bytes_of_connections: client_hello first_bytes;
    questions_and_policies: dns_questions dns_answers egress_tables;
    plain_http: web_requests web_answers;
    names_and_tokens: port_tokens endpoint_targets users;
    archives: tar;
    layers: chunk_index records;
}
