//! Layers on demand: runtime and holder, holder and fetcher; and what bytes of anybody's come to.

use dsec_proto::filled::Bits;
use dsec_proto::loading::*;
use dsec_proto::times::Times;
use serde::de::DeserializeOwned;

use crate::samples::*;
use crate::vectors::{compare, vector};

fn fetched() -> Fetched {
    let mut took = Times::default();
    [3, 900, 1_000_000].into_iter().for_each(|us| took.add(us));
    Fetched {
        requests: 3,
        retries: 1,
        stored_bytes: 1 << 20,
        fetched_bytes: 1 << 33,
        corrupt: 2,
        failed: 4,
        took,
    }
}

fn to_holder() -> Vec<ToHolder> {
    let digest = "d".repeat(64);
    vec![
        ToHolder::Hello { version: VERSION },
        ToHolder::Open {
            turn: 1,
            digest: digest.clone(),
        },
        ToHolder::Close {
            turn: 2,
            layer: 8,
            digest,
        },
        ToHolder::Ask { turn: 3, after: 7 },
    ]
}

fn from_holder() -> Vec<FromHolder> {
    vec![
        FromHolder::Hello { version: VERSION },
        FromHolder::Opened {
            turn: 1,
            layer: Some(8),
        },
        FromHolder::Opened {
            turn: 1,
            layer: None,
        },
        FromHolder::Refused {
            turn: 1,
            reason: "why".into(),
        },
        FromHolder::Closed { turn: 2 },
        FromHolder::Going {
            turn: 3,
            going: Going {
                fetcher: true,
                oldest_wait_ms: 16,
                counts: loading_counts(),
                layers: vec![layer_loading()],
                more: true,
            },
        },
    ]
}

fn to_fetcher() -> Vec<ToFetcher> {
    vec![
        ToFetcher::Hello { version: VERSION },
        ToFetcher::Layer {
            layer: 8,
            digest: "d".repeat(64),
        },
        ToFetcher::Want {
            id: 70_000,
            layer: 8,
            offset: 1 << 33,
            length: 131_072,
            waited_ms: 12,
        },
        ToFetcher::Ahead {
            layer: 8,
            offset: 1 << 33,
            length: 4 << 20,
        },
        ToFetcher::Drop { layer: 8 },
    ]
}

fn from_fetcher() -> Vec<FromFetcher> {
    vec![
        FromFetcher::Hello { version: VERSION },
        FromFetcher::Took {
            layer: 8,
            refused: Some("why".into()),
        },
        FromFetcher::Done {
            id: 70_000,
            errno: None,
        },
        FromFetcher::Done {
            id: 70_001,
            errno: Some(5),
        },
        FromFetcher::Complete { layer: 8 },
        FromFetcher::Fetched {
            layer: 8,
            fetched: fetched(),
        },
    ]
}

/// Every packet of both protocols, every field.
#[test]
fn packets() {
    let mut all = Vec::new();
    all.extend(to_holder().iter().map(|each| vector("to holder", each)));
    all.extend(from_holder().iter().map(|each| vector("from holder", each)));
    all.extend(to_fetcher().iter().map(|each| vector("to fetcher", each)));
    all.extend(
        from_fetcher()
            .iter()
            .map(|each| vector("from fetcher", each)),
    );
    compare("loading.json", &all);
}

/// A page of layers with the largest numbers that there are fits into a packet.
#[test]
fn a_page_is_a_packet() {
    let most = LoadingCounts {
        fetched_bytes: u64::MAX,
        ..loading_counts()
    };
    let layer = LayerLoading {
        layer: u32::MAX,
        bytes: u64::MAX,
        filled_bytes: u64::MAX,
        counts: most,
        ..layer_loading()
    };
    let page = FromHolder::Going {
        turn: u64::MAX,
        going: Going {
            layers: vec![layer; PAGE],
            ..Going::default()
        },
    };
    let bytes = rmp_serde::to_vec_named(&page).expect("encodes");
    // Each number of the counts could be 8 bytes longer.
    let spare = (PAGE + 1) * 16 * 8;
    assert!(bytes.len() + spare < dsec_proto::packet::MAX_PACKET);
}

/// Numbers that repeat for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// Damages a packet: bytes changed, cut, doubled, put in.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.next(3) {
        let at = random.next(bytes.len().max(1)).min(bytes.len());
        match random.next(4) {
            0 if at < bytes.len() => bytes[at] = random.next(256) as u8,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, [0x91, 0xdf, 0xff, 0xc1, 0xdd][random.next(5)]),
            _ => bytes.extend_from_within(at..),
        }
    }
}

/// Decodes, and if it comes to something, that can be said again.
fn decode<T: DeserializeOwned + serde::Serialize>(bytes: &[u8]) -> bool {
    let decoded = rmp_serde::from_slice::<T>(bytes);
    if let Ok(value) = &decoded {
        rmp_serde::to_vec_named(value).expect("encodes");
    }
    decoded.is_ok()
}

fn hostile<T: DeserializeOwned + serde::Serialize>(good: &[T]) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut refused) = (0, 0);
    for message in good {
        let bytes = rmp_serde::to_vec_named(message).expect("encodes");
        for length in 0..bytes.len() {
            assert!(!decode::<T>(&bytes[..length]), "a part of it");
        }
        for _ in 0..3000 {
            let mut damaged = bytes.clone();
            damage(&mut damaged, &mut random);
            match decode::<T>(&damaged) {
                true => taken += 1,
                false => refused += 1,
            }
        }
    }
    // Both happen, or nothing was tried.
    assert!(taken > 10 && refused > 1000, "{taken} {refused}");
    for length in 0..300 {
        let noise: Vec<u8> = (0..length).map(|_| random.next(256) as u8).collect();
        decode::<T>(&noise);
        // Nested as deep as a packet can be.
        decode::<T>(&vec![0x91; length * 200]);
        decode::<T>(&[vec![0x81, 0xa4], b"open".to_vec(), vec![0x81; length * 200]].concat());
    }
    // Lengths that nobody has memory for.
    for head in [0xdd_u8, 0xdf, 0xdb, 0xc6, 0xc9] {
        assert!(!decode::<T>(&[head, 0xff, 0xff, 0xff, 0xff, 1]));
    }
}

/// Whatever the other side sends is a message or an error.
#[test]
fn hostile_packets() {
    hostile(&to_holder());
    hostile(&from_holder());
    hostile(&to_fetcher());
    hostile(&from_fetcher());
}

/// Whatever stands in `filled` is what is there, or nothing.
#[test]
fn hostile_records() {
    let size = 77 * CHUNK + 5;
    let (bits, _file) = Bits::new(size, &[]).expect("made");
    (0..50).for_each(|chunk| bits.set(chunk));
    let good = bits.record();
    let mut random = Random(77);
    for _ in 0..500 {
        let mut damaged = good.clone();
        damage(&mut damaged, &mut random);
        let (read, _file) = Bits::new(size, &damaged).expect("made");
        assert!(read.count() <= read.chunks());
        if damaged.len() != good.len() {
            assert_eq!(read.count(), 0);
        }
    }
    for (offset, length) in [
        (u64::MAX, u64::MAX),
        (0, u64::MAX),
        (size, 1),
        (u64::MAX, 0),
    ] {
        let touched = bits.touched(offset, length);
        assert!(touched.start <= touched.end && touched.end <= bits.chunks());
    }
}
