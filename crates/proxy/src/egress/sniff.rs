//! What a connection is by its first bytes. Pure; every byte is hostile.

use super::hello::{self, Hello};

/// A kind of connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not yet clear.
    More,
    /// TLS.
    Tls(Hello),
    /// A request of HTTP/1, to be read by a real parser.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// A shell: its protocol has no hosts.
    Ssh,
    /// Something else.
    Other,
    /// TLS that can be read in two ways.
    Malformed,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SSH: &[u8] = b"SSH-2.0-";
/// Longest method that is taken for one.
const MAX_METHOD: usize = 32;

/// What the bytes so far say.
#[must_use]
pub fn kind(bytes: &[u8]) -> Kind {
    match bytes {
        [] => Kind::More,
        [22, ..] => match hello::read(bytes) {
            hello::Read::More => Kind::More,
            hello::Read::Hello(hello) => Kind::Tls(hello),
            hello::Read::Wrong => Kind::Malformed,
        },
        _ => text(bytes),
    }
}

fn text(bytes: &[u8]) -> Kind {
    for (word, kind) in [(PREFACE, Kind::Http2), (SSH, Kind::Ssh)] {
        if bytes.starts_with(word) {
            return kind;
        }
        if word.starts_with(bytes) {
            return Kind::More;
        }
    }
    // Some servers skip empty lines before a request.
    let begun = bytes.iter().position(|byte| !b"\r\n".contains(byte));
    let Some(begun) = begun else {
        return if bytes.len() > 4 {
            Kind::Other
        } else {
            Kind::More
        };
    };
    let word = &bytes[begun..];
    let end = word.iter().position(|byte| !is_token(*byte));
    match end {
        None if word.len() > MAX_METHOD => Kind::Other,
        None => Kind::More,
        Some(end @ 1..=MAX_METHOD) if b" \t".contains(&word[end]) => Kind::Http,
        Some(_) => Kind::Other,
    }
}

/// Of which a method may consist (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each protocol is known by its beginning, as soon as that is clear and not before.
    #[test]
    fn kinds() {
        let tls = hello::tests::hello(&[hello::tests::name("a.test")]);
        assert!(matches!(kind(&tls), Kind::Tls(_)));
        assert_eq!(kind(&tls[..9]), Kind::More);
        assert_eq!(kind(&[22, 9]), Kind::Malformed);
        for (bytes, wanted) in [
            (&b"GET / HTTP/1.1\r\n"[..], Kind::Http),
            (b"get\t/", Kind::Http),
            (b"\r\nGET /", Kind::Http),
            (b"GE", Kind::More),
            (b"PRI * HTTP/2.0\r\n", Kind::More),
            (PREFACE, Kind::Http2),
            (b"PRI /", Kind::Http),
            (b"SSH-2.0-OpenSSH", Kind::Ssh),
            (b"SSH-", Kind::More),
            (b"\x00\x01", Kind::Other),
            (b"\r\n\r\n\r\n", Kind::Other),
            (b"{\"id\": 1}", Kind::Other),
        ] {
            assert_eq!(kind(bytes), wanted, "{bytes:?}");
        }
        assert_eq!(kind(&[b'a'; 40]), Kind::Other);
    }
}
