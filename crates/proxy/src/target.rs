//! What a sandbox asks of an endpoint, joined to the endpoint's own path. Pure.

/// Longest path and query.
const MAX_TARGET: usize = 16 * 1024;
/// How often a path may have been percent-encoded before it is refused.
const MAX_ENCODED: usize = 4;
/// What Unicode's compatibility forms (NFKC) make `.`, `..`, `...`, `/` and `\\` of.
const LOOKALIKES: [char; 8] = [
    '\u{2024}', '\u{2025}', '\u{2026}', '\u{fe52}', '\u{fe68}', '\u{ff0e}', '\u{ff0f}', '\u{ff3c}',
];

/// The target of the request that is passed on: `prefix`, then the path and query that were asked for.
///
/// # Errors
/// A sentence that says what is wrong with the target.
pub fn join(prefix: &str, asked: &str) -> Result<String, &'static str> {
    if !asked.starts_with('/') {
        return Err("the request's target must be a path");
    }
    if asked.len() > MAX_TARGET {
        return Err("the request's target is too long");
    }
    if !asked.bytes().all(|byte| byte.is_ascii_graphic()) || asked.contains('#') {
        return Err("the request's target has characters that no target has");
    }
    let path = asked.split('?').next().unwrap_or(asked);
    if path.starts_with("//") {
        return Err("the path must not begin with two slashes");
    }
    climbs(path)?;
    Ok(format!("{prefix}{asked}"))
}

/// Refuses a path of which some reader could think that it leads upwards, however often it decodes it.
fn climbs(path: &str) -> Result<(), &'static str> {
    if !escapes_are_whole(path.as_bytes()) {
        return Err("the path has a % that begins no escape");
    }
    let mut bytes = path.as_bytes().to_vec();
    for _ in 0..MAX_ENCODED {
        // Dots and slashes longer than they need be (%c0%ae) are none in UTF-8, and are to some readers.
        let text = std::str::from_utf8(&bytes).map_err(|_| "the path is not UTF-8")?;
        if text.contains(LOOKALIKES) {
            return Err("the path has a character that some readers take for a dot or a slash");
        }
        if bytes.iter().any(|byte| *byte < 0x20 || *byte == 0x7f) {
            return Err("the path has control characters in it");
        }
        if bytes.contains(&b'\\') {
            return Err("the path has a backslash in it");
        }
        if bytes.split(|byte| *byte == b'/').any(is_dots) {
            return Err("the path must not have . or .. in it");
        }
        let decoded = decode(&bytes);
        if decoded == bytes {
            return Ok(());
        }
        bytes = decoded;
    }
    Err("the path is percent-encoded too often")
}

/// Whether each `%` has two hexadecimal digits behind it; to some readers `%u002e` is a dot.
fn escapes_are_whole(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit))
}

/// `.` and `..`, with path parameters or without.
fn is_dots(segment: &[u8]) -> bool {
    let name = segment.split(|byte| *byte == b';').next().unwrap_or(&[]);
    matches!(name, b"." | b"..")
}

/// Percent-decodes once; what is no escape stays.
fn decode(bytes: &[u8]) -> Vec<u8> {
    let hex = |byte: &u8| (*byte as char).to_digit(16);
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let pair = (
            bytes.get(at + 1).and_then(hex),
            bytes.get(at + 2).and_then(hex),
        );
        if let (b'%', (Some(high), Some(low))) = (byte, pair) {
            decoded.push((high * 16 + low) as u8);
            at += 3;
        } else {
            decoded.push(*byte);
            at += 1;
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::join;

    /// The path that was asked for follows the endpoint's own, with its query.
    #[test]
    fn path_is_appended() {
        let joined = |prefix, asked| join(prefix, asked).expect("is a path");
        assert_eq!(
            joined("/v1", "/chat/completions?a=b/../c"),
            "/v1/chat/completions?a=b/../c"
        );
        assert_eq!(joined("", "/"), "/");
        assert_eq!(joined("/v1", "/models/org%2Fname"), "/v1/models/org%2Fname");
        assert_eq!(joined("/v1", "/a..b/...//x"), "/v1/a..b/...//x");
        assert_eq!(joined("/v1", "/100%25/caf%C3%A9"), "/v1/100%25/caf%C3%A9");
        assert_eq!(joined("/v1", "/x?q=%u002e%ff"), "/v1/x?q=%u002e%ff");
    }

    /// Nothing leads above the endpoint's own path, in whatever spelling.
    #[test]
    fn nothing_climbs() {
        for asked in [
            "/..",
            "/../admin",
            "/a/../b",
            "/a/./b",
            "/a/..",
            "/%2e%2e/x",
            "/.%2E/x",
            "/a/%2e%2e%2fx",
            "/a%2f..%2fb",
            "/%252e%252e/x",
            "/%25252e./x",
            "/..;/x",
            "/..;a=b/x",
            "/..\\x",
            "/a\\..\\b",
            "/%5c../x",
            "/..%5cx",
            "/..%00/x",
            "/%0d%0aHost:x",
            "/%c0%ae%c0%ae/x",
            "/a/%c0%af..",
            "/%25c0%25ae%25c0%25ae/x",
            "/%u002e%u002e/x",
            "/%2",
            "/%",
            "/%ef%bc%8e%ef%bc%8e/x",
            "/%e2%80%a5/x",
            "/..%ef%bc%8fx",
        ] {
            assert!(join("/v1", asked).is_err(), "{asked}");
        }
    }

    /// Only a path is a target: no URL, no host, no asterisk, nothing that ends the line.
    #[test]
    fn only_paths() {
        let long = "/".to_owned() + &"a".repeat(20_000);
        for asked in [
            "http://other/",
            "other:80",
            "*",
            "",
            "//other/x",
            "/a b",
            "/a\r\nX: y",
            "/a\tb",
            "/\u{e9}",
            "/a#b",
            &long,
        ] {
            assert!(join("/v1", asked).is_err(), "{asked:.40}");
        }
    }
}
