//! The other side: what a server or a client makes of bytes. Strict where it reads what the proxy wrote, which has to be
//! beyond doubt; generous where it looks for a request in what passed unread.

/// One message, head and body.
#[derive(Debug)]
pub(crate) struct Message {
    /// Request or status line.
    pub(crate) first: String,
    /// Names in lower case, and values.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    /// Bytes of the whole.
    pub(crate) length: usize,
}

/// How the bytes so far are read.
pub(crate) enum Read {
    More,
    Whole(Message),
}

/// What some server would take for a request of HTTP/1.
pub(crate) fn is_request(bytes: &[u8]) -> bool {
    let blank = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0x0b | 0x1c..=0x1f);
    let Some(begin) = bytes.iter().position(|byte| !blank(byte)) else {
        return false;
    };
    let line = bytes[begin..].split(|byte| *byte == b'\n').next();
    let words: Vec<&[u8]> = line
        .unwrap_or_default()
        .split(blank)
        .filter(|word| !word.is_empty())
        .collect();
    words.len() == 3
        && words[0].iter().all(u8::is_ascii_alphabetic)
        && words[2].to_ascii_uppercase().starts_with(b"HTTP/1.")
}

impl Message {
    /// Values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&[u8]> {
        let found = self.fields.iter().filter(|(known, _)| known == name);
        found.map(|(_, value)| value.as_slice()).collect()
    }
}

/// Reads one message. `bodiless`: none follows its head, whatever that says.
///
/// # Panics
/// For what could be read in two ways.
pub(crate) fn read(bytes: &[u8], bodiless: bool, ended: bool) -> Read {
    let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") else {
        return Read::More;
    };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let mut line = || -> Option<&[u8]> {
        let line = lines.next()?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    };
    let first = line().expect("a first line");
    assert!(first.iter().all(|byte| *byte >= b' ' && *byte != 0x7f));
    let mut fields = Vec::new();
    while let Some(line) = line() {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.expect("a field has a colon"));
        assert!(!name.is_empty() && name.iter().all(|byte| is_token(*byte)));
        let value = value[1..].trim_ascii();
        let plain = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
        assert!(value.iter().all(plain), "a value: {value:?}");
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        fields.push((name, value.to_vec()));
    }
    let first = String::from_utf8_lossy(first).into_owned();
    let mut message = Message {
        first,
        fields,
        length: end + 4,
    };
    match body(&message, &bytes[end + 4..], bodiless, ended) {
        Some(length) => message.length += length,
        None => return Read::More,
    }
    Read::Whole(message)
}

/// Bytes of the body; `None` when more are to come.
fn body(message: &Message, rest: &[u8], bodiless: bool, ended: bool) -> Option<usize> {
    let lengths = message.all("content-length");
    let codings = message.all("transfer-encoding");
    assert!(lengths.len() + codings.len() <= 1, "{message:?}");
    if bodiless {
        return Some(0);
    }
    if let [length] = lengths[..] {
        let text = std::str::from_utf8(length).expect("digits");
        assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        let length = text.parse().expect("a length");
        return (rest.len() >= length).then_some(length);
    }
    if let [coding] = codings[..] {
        assert_eq!(coding, b"chunked");
        return chunked(rest);
    }
    let answers = message.first.starts_with("HTTP/");
    // An answer without a length lasts until its connection ends; a request has no body.
    (!answers || ended).then_some(if answers { rest.len() } else { 0 })
}

fn chunked(rest: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let end = rest[at..].windows(2).position(|part| part == b"\r\n")?;
        let line = std::str::from_utf8(&rest[at..at + end]).expect("a size");
        let size = usize::from_str_radix(line, 16).expect("a size, and nothing else");
        at += end + 2 + size + 2;
        let close = rest.get(at - 2..at)?;
        assert_eq!(close, b"\r\n", "a chunk ends where it says");
        if size == 0 {
            return Some(at);
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
