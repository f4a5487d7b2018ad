//! One golden file: its form, and its comparison with what the types give.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// One message.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Vector {
    pub name: String,
    /// JSON has no bytes: they are arrays of numbers in it.
    pub json: serde_json::Value,
    pub msgpack: String,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
        .collect()
}

/// A message, after checking that its bytes come back as the same value.
pub fn vector<T>(name: &str, value: &T) -> Vector
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = rmp_serde::to_vec_named(value).expect("encodes");
    let back: T = rmp_serde::from_slice(&bytes).expect("decodes");
    assert_eq!(&back, value, "{name}");
    let json = serde_json::to_value(value).expect("has a JSON form");
    Vector {
        name: name.into(),
        json,
        msgpack: hex(&bytes),
    }
}

pub fn compare(file: &str, vectors: &[Vector]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(file);
    if std::env::var("DSEC_GOLDEN").as_deref() == Ok("write") {
        let text = serde_json::to_string_pretty(vectors).expect("JSON");
        std::fs::write(&path, text + "\n").expect("is written");
    }
    let text = std::fs::read_to_string(&path).expect("the golden file is there");
    let golden: Vec<Vector> = serde_json::from_str(&text).expect("is JSON");
    for (ours, theirs) in vectors.iter().zip(&golden) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(vectors.len(), golden.len());
}
