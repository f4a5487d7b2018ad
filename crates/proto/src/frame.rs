//! Frames: one msgpack array each, `[stream, kind, …]`, at most [`MAX_FRAME`] bytes.

use rmp::{decode, encode};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::error::WireError;

/// Longest frame, without the length before it.
pub const MAX_FRAME: usize = 256 * 1024;
/// Most bytes that one data frame carries, so that the frame stays below [`MAX_FRAME`].
pub const MAX_DATA: usize = MAX_FRAME - 64;
/// Longest open, in parts or whole.
pub const MAX_OPEN: usize = 16 << 20;
/// Credit that a channel has beyond its first offset unless the open says otherwise.
pub const DEFAULT_CREDIT: u64 = 1 << 20;

const OPEN: u8 = 0;
const DATA: u8 = 1;
const UNTIL: u8 = 2;
const END: u8 = 3;
const ERROR: u8 = 4;
const CLOSE: u8 = 5;
const ITEM: u8 = 6;
const PART: u8 = 7;

/// What a client sends, borrowed from its bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// Opens a stream.
    Open {
        /// Name of the method.
        method: &'a str,
        /// Its parameters, still msgpack.
        params: &'a [u8],
    },
    /// Bytes of a channel; none end it.
    Data {
        /// Channel.
        channel: u8,
        /// Where the bytes stand in the channel.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The client can take bytes of the channel up to this offset.
    Until {
        /// Channel.
        channel: u8,
        /// Absolute offset.
        offset: u64,
    },
    /// No longer interested.
    Close,
    /// A piece of an open that is longer than a frame.
    Part {
        /// Whether the open is complete with it.
        last: bool,
        /// The piece.
        bytes: &'a [u8],
    },
}

fn malformed(what: &str) -> WireError {
    WireError::new("protocol_error", format!("malformed frame: {what}"))
}

/// Reads one frame of a client: its stream and what it says.
///
/// # Errors
/// `protocol_error` for anything that is not a frame which clients send.
pub fn decode(frame: &[u8]) -> Result<(u32, Incoming<'_>), WireError> {
    let mut rest = frame;
    let length = decode::read_array_len(&mut rest).map_err(|_| malformed("not an array"))?;
    let stream: u32 = decode::read_int(&mut rest).map_err(|_| malformed("stream"))?;
    let kind: u8 = decode::read_int(&mut rest).map_err(|_| malformed("kind"))?;
    let incoming = match (kind, length) {
        (OPEN, 4) => {
            let (method, params) =
                decode::read_str_from_slice(rest).map_err(|_| malformed("method"))?;
            rest = &[];
            Incoming::Open { method, params }
        }
        (DATA, 5) => {
            let (channel, offset) = channel_and_offset(&mut rest)?;
            let bytes = bytes_of(&mut rest)?;
            Incoming::Data {
                channel,
                offset,
                bytes,
            }
        }
        (UNTIL, 4) => {
            let (channel, offset) = channel_and_offset(&mut rest)?;
            Incoming::Until { channel, offset }
        }
        (CLOSE, 2) => Incoming::Close,
        (PART, 4) => {
            let last = decode::read_bool(&mut rest).map_err(|_| malformed("last"))?;
            let bytes = bytes_of(&mut rest)?;
            Incoming::Part { last, bytes }
        }
        _ => return Err(malformed("kind or length")),
    };
    if rest.is_empty() {
        Ok((stream, incoming))
    } else {
        Err(malformed("bytes after the end"))
    }
}

fn bytes_of<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let count = decode::read_bin_len(rest).map_err(|_| malformed("bytes"))? as usize;
    let whole: &'a [u8] = rest;
    let bytes = whole
        .get(..count)
        .ok_or_else(|| malformed("bytes cut short"))?;
    *rest = &whole[count..];
    Ok(bytes)
}

fn channel_and_offset(rest: &mut &[u8]) -> Result<(u8, u64), WireError> {
    let channel = decode::read_int(rest).map_err(|_| malformed("channel"))?;
    let offset = decode::read_int(rest).map_err(|_| malformed("offset"))?;
    Ok((channel, offset))
}

/// Parameters of a method. A field that the type does not have is refused by name.
///
/// # Errors
/// `unsupported` for an unknown field, `invalid_argument` for anything else that does not fit.
pub fn params<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    T::deserialize(&mut reader).map_err(|error| {
        let text = error.to_string();
        match text
            .strip_prefix("unknown field ")
            .or_else(|| text.strip_prefix("unknown variant "))
        {
            Some(field) => WireError::new("unsupported", format!("unknown field {field}")),
            None => WireError::invalid(format!("the request does not fit its method: {text}")),
        }
    })
}

fn header(length: u32, stream: u32, kind: u8, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(room + 24);
    out.extend_from_slice(&[0; 4]);
    // Writing to a Vec cannot fail.
    let _ = encode::write_array_len(&mut out, length);
    let _ = encode::write_uint(&mut out, u64::from(stream));
    let _ = encode::write_uint(&mut out, u64::from(kind));
    out
}

/// Puts the length, 4 bytes big endian, before a frame that was begun with room for it.
fn sealed(mut out: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

fn with_object<T: Serialize>(stream: u32, kind: u8, object: &T) -> Vec<u8> {
    let mut out = header(3, stream, kind, 256);
    let mut writer = rmp_serde::Serializer::new(&mut out).with_struct_map();
    if let Err(error) = object.serialize(&mut writer) {
        let told = WireError::new(
            "platform_error",
            format!("an answer could not be written: {error}"),
        );
        return self::error(stream, &told);
    }
    sealed(out)
}

/// A data frame with its length before it.
#[must_use]
pub fn data(stream: u32, channel: u8, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = header(5, stream, DATA, bytes.len());
    let _ = encode::write_uint(&mut out, u64::from(channel));
    let _ = encode::write_uint(&mut out, offset);
    let _ = encode::write_bin(&mut out, bytes);
    sealed(out)
}

/// What a data frame has before its bytes, with the frame's length: `count` bytes are to follow it.
#[must_use]
pub fn data_head(stream: u32, channel: u8, offset: u64, count: u32) -> Vec<u8> {
    let mut out = header(5, stream, DATA, 0);
    let _ = encode::write_uint(&mut out, u64::from(channel));
    let _ = encode::write_uint(&mut out, offset);
    let _ = encode::write_bin_len(&mut out, count);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.saturating_add(count).to_be_bytes());
    out
}

/// A grant of credit with its length before it.
#[must_use]
pub fn until(stream: u32, channel: u8, offset: u64) -> Vec<u8> {
    let mut out = header(4, stream, UNTIL, 16);
    let _ = encode::write_uint(&mut out, u64::from(channel));
    let _ = encode::write_uint(&mut out, offset);
    sealed(out)
}

/// The last frame of a stream that went well.
#[must_use]
pub fn end<T: Serialize>(stream: u32, result: &T) -> Vec<u8> {
    with_object(stream, END, result)
}

/// The last frame of a stream that failed.
#[must_use]
pub fn error(stream: u32, error: &WireError) -> Vec<u8> {
    with_object(stream, ERROR, error)
}

/// A message within a stream.
#[must_use]
pub fn item<T: Serialize>(stream: u32, object: &T) -> Vec<u8> {
    with_object(stream, ITEM, object)
}

/// What a client writes, for tests and tools: `open` with its length before it.
#[must_use]
pub fn open<T: Serialize>(stream: u32, method: &str, params: &T) -> Vec<u8> {
    let mut out = header(4, stream, OPEN, 256);
    let _ = encode::write_str(&mut out, method);
    let mut writer = rmp_serde::Serializer::new(&mut out).with_struct_map();
    // Parameters are plain structs: they have no form that msgpack lacks.
    let _ = params.serialize(&mut writer);
    sealed(out)
}

/// What a client writes: `close` with its length before it.
#[must_use]
pub fn close(stream: u32) -> Vec<u8> {
    sealed(header(2, stream, CLOSE, 0))
}
