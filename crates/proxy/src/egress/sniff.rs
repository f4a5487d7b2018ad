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
    /// What can be read in two ways: TLS, a request, a shell's first line.
    Malformed,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SSH: &[u8] = b"SSH-2.0-";
/// Longest first line of a shell (RFC 4253).
const MAX_SSH: usize = 255;
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
        _ if bytes.starts_with(PREFACE) => Kind::Http2,
        _ if bytes.starts_with(SSH) => ssh(bytes),
        _ if PREFACE.starts_with(bytes) || SSH.starts_with(bytes) => Kind::More,
        _ => text(bytes),
    }
}

/// A shell's first line, whole: what names HTTP in it is a request to somebody whose methods are words like it.
fn ssh(bytes: &[u8]) -> Kind {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    if line.len() > MAX_SSH
        || line
            .windows(5)
            .any(|part| part.eq_ignore_ascii_case(b"http/"))
    {
        return Kind::Malformed;
    }
    end.map_or(Kind::More, |_| Kind::Ssh)
}

/// A request, by a word and the space after it, or something else.
fn text(bytes: &[u8]) -> Kind {
    // Servers skip empty lines before a request, and some skip spaces.
    let Some(begun) = bytes.iter().position(|byte| !is_space(*byte)) else {
        return Kind::More;
    };
    let (skipped, word) = bytes.split_at(begun);
    let plain = skipped.iter().all(|byte| b"\r\n".contains(byte));
    match word.iter().position(|byte| !is_token(*byte)) {
        None if word.len() > MAX_METHOD => Kind::Malformed,
        None => Kind::More,
        Some(0) => Kind::Other,
        Some(end) if end > MAX_METHOD => Kind::Malformed,
        Some(end) => match word[end] {
            b' ' | b'\t' if plain => Kind::Http,
            b' ' | b'\t' => Kind::Malformed,
            b'\r' if word.len() == end + 1 => Kind::More,
            b'\n' => Kind::Other,
            b'\r' if word[end + 1] == b'\n' => Kind::Other,
            // Readers that split at every kind of space see a request here.
            byte if is_space(byte) => Kind::Malformed,
            _ => Kind::Other,
        },
    }
}

/// What some reader takes for a space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0)
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
            (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", Kind::Ssh),
            (b"SSH-2.0-OpenSSH", Kind::More),
            (b"SSH-", Kind::More),
            (b"\x00\x01", Kind::Other),
            (b"QUIT\r", Kind::More),
            (b"QUIT\r\n", Kind::Other),
            (b"QUIT\n", Kind::Other),
            (b"*1\r\n$4\r\nPING\r\n", Kind::Other),
            (b"{\"id\": 1}", Kind::Other),
        ] {
            assert_eq!(kind(bytes), wanted, "{bytes:?}");
        }
    }

    /// A request is one however it is disguised: as a shell's first line, behind empty lines or spaces, by a long word or
    /// another kind of space after it.
    #[test]
    fn disguises() {
        let empty = b"\r\n".repeat(5000);
        assert_eq!(kind(&empty), Kind::More);
        assert_eq!(
            kind(&[&empty, &b"GET / HTTP/1.1\r\n"[..]].concat()),
            Kind::Http
        );
        for bytes in [
            &b"SSH-2.0-x / HTTP/1.1\r\nHost: other.test\r\n\r\n"[..],
            b"SSH-2.0-x / http/1.0",
            b"SSH-2.0-\0HTTP/1.1\n",
            b" GET / HTTP/1.1\r\n",
            b"\x0bGET / HTTP/1.1\r\n",
            b"GET\x0b/ HTTP/1.1\r\n",
            b"GET\r/ HTTP/1.1\r\n",
            b"GET\xa0/ HTTP/1.1\r\n",
            &[b'a'; 40],
            &[&[b'a'; 33][..], b" / HTTP/1.1\r\n"].concat(),
            &[SSH, &[b'a'; 300]].concat(),
            &[SSH, &[b'a'; 300], b"\n"].concat(),
        ] {
            assert_eq!(kind(bytes), Kind::Malformed, "{bytes:?}");
        }
    }

    /// Whatever a connection is, it is the same in one piece as byte by byte: nothing is decided that more bytes change.
    #[test]
    fn pieces() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n",
            b"SSH-2.0-x / HTTP/1.1\r\n",
            b"SSH-2.0-x\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x00\x01\x02",
            b"*1\r\n",
        ] {
            let first = (1..=bytes.len()).map(|end| kind(&bytes[..end]));
            let first = first.into_iter().find(|kind| *kind != Kind::More);
            assert_eq!(first, Some(kind(bytes)), "{bytes:?}");
        }
    }
}
