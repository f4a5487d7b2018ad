//! Frames, and what is refused of them.

use dsec_proto::error::WireError;
use dsec_proto::frame::{self, Incoming};
use dsec_proto::runtime::*;

use crate::vectors::{compare, hex, unhex, Vector};

/// Frames of each kind, with the length before them.
#[test]
fn frames() {
    let named = |name: &str, json: serde_json::Value, bytes: Vec<u8>| Vector {
        name: name.into(),
        json,
        msgpack: hex(&bytes),
    };
    let long = vec![7u8; 300];
    compare(
        "frames.json",
        &[
            named(
                "open",
                serde_json::json!([1, 0, "hello", {"version": 1}]),
                frame::open(1, "hello", &HelloParams { version: 1 }),
            ),
            named(
                "data",
                serde_json::json!([300, 1, 1, 70_000, [104, 105]]),
                frame::data(300, 1, 70_000, b"hi"),
            ),
            named(
                "data empty",
                serde_json::json!([1, 1, 0, 5, []]),
                frame::data(1, 0, 5, b""),
            ),
            named(
                "data long",
                serde_json::json!([1, 1, 2, 0, long]),
                frame::data(1, 2, 0, &[7; 300]),
            ),
            named(
                "until",
                serde_json::json!([1, 2, 0, 1u64 << 33]),
                frame::until(1, 0, 1 << 33),
            ),
            named(
                "end",
                serde_json::json!([70_000, 3, {}]),
                frame::end(70_000, &Empty {}),
            ),
            named(
                "error",
                serde_json::to_value((1, 4, WireError::not_found("no"))).expect("JSON"),
                frame::error(1, &WireError::not_found("no")),
            ),
            named("close", serde_json::json!([1, 5]), frame::close(1)),
            named(
                "item",
                serde_json::json!([1, 6, {"started_at": 1.5}]),
                frame::item(1, &Started { started_at: 1.5 }),
            ),
        ],
    );
}

/// What clients write is read back as what it was.
#[test]
fn client_frames_are_read() {
    let opened = frame::open(9, "stats", &Empty {});
    assert_eq!(
        frame::decode(&opened[4..]).expect("reads"),
        (
            9,
            Incoming::Open {
                method: "stats",
                params: &[0x80]
            }
        )
    );
    let data = frame::data(9, 0, 1 << 40, b"abc");
    assert_eq!(
        frame::decode(&data[4..]).expect("reads"),
        (
            9,
            Incoming::Data {
                channel: 0,
                offset: 1 << 40,
                bytes: b"abc"
            }
        )
    );
    assert_eq!(
        frame::decode(&frame::until(9, 2, 7)[4..]).expect("reads"),
        (
            9,
            Incoming::Until {
                channel: 2,
                offset: 7
            }
        )
    );
    assert_eq!(
        frame::decode(&frame::close(9)[4..]).expect("reads"),
        (9, Incoming::Close)
    );
}

/// Anything else is refused and never panics: cuts at each byte, kinds of the other direction, bytes behind the end.
#[test]
fn malformed_frames_are_refused() {
    let data = frame::data(9, 0, 5, b"abc");
    for length in 0..data.len() - 4 {
        assert!(frame::decode(&data[4..4 + length]).is_err(), "{length}");
    }
    for wrong in [frame::end(1, &Empty {}), frame::item(1, &Empty {})] {
        assert!(frame::decode(&wrong[4..]).is_err());
    }
    let mut longer = frame::close(1);
    longer.push(0);
    assert!(frame::decode(&longer[4..]).is_err());
    assert!(frame::decode(&unhex("95cf0000000100000000010000c400")).is_err());
}

/// An unknown field is refused by its name; a wrong type and a missing field are the caller's fault.
#[test]
fn unknown_fields_are_named() {
    let bytes =
        rmp_serde::to_vec_named(&serde_json::json!({"version": 1, "colour": 2})).expect("encodes");
    let error = frame::params::<HelloParams>(&bytes).expect_err("is refused");
    assert_eq!(error.code, "unsupported");
    assert!(error.message.contains("colour"), "{}", error.message);
    let bytes = rmp_serde::to_vec_named(&serde_json::json!({"version": "x"})).expect("encodes");
    assert_eq!(
        frame::params::<HelloParams>(&bytes)
            .expect_err("is refused")
            .code,
        "invalid_argument"
    );
    let bytes = rmp_serde::to_vec_named(&serde_json::json!({})).expect("encodes");
    assert_eq!(
        frame::params::<HelloParams>(&bytes)
            .expect_err("is refused")
            .code,
        "invalid_argument"
    );
}

/// Answers with more fields than we know are read all the same.
#[test]
fn answers_may_say_more() {
    let bytes =
        rmp_serde::to_vec_named(&serde_json::json!({"exit_code": 1, "signal": null, "new": true}))
            .expect("encodes");
    let end: ToolEnd = rmp_serde::from_slice(&bytes).expect("decodes");
    assert_eq!(end.exit_code, Some(1));
}
