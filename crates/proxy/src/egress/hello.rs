//! The beginning of a TLS connection: which name it asks for. Pure; every byte is hostile.

/// What a ClientHello says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server's name, as it was written.
    pub name: Option<String>,
    /// Whether there is an encrypted hello inside, whose name is another.
    pub encrypted: bool,
}

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// More are needed.
    More,
    /// A whole hello.
    Hello(Hello),
    /// No hello, or one that can be read in two ways.
    Wrong,
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// Names of drafts of the same, which old servers may still know.
const ENCRYPTED_NAME: u16 = 0xffce;
/// Longest hello; the largest in use, with post-quantum keys, have some 2 KiB.
const MAX_HELLO: usize = 16 * 1024;

/// A view of bytes that ends where it ends.
struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        Some(
            taken
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    }

    /// What follows a length of so many bytes.
    fn counted(&mut self, bytes: usize) -> Option<View<'a>> {
        let count = self.number(bytes)?;
        self.take(count).map(View)
    }
}

/// Reads the beginning of a connection, whose hello may be spread over several records.
#[must_use]
pub fn read(bytes: &[u8]) -> Read {
    let mut records = View(bytes);
    let mut hello: Vec<u8> = Vec::new();
    loop {
        if hello.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Read::Wrong;
        }
        if let Some(length) = length_of(&hello) {
            if length > MAX_HELLO {
                return Read::Wrong;
            }
            if hello.len() >= 4 + length {
                // What follows the hello in its own record would be a second message, which no client sends yet.
                if hello.len() > 4 + length {
                    return Read::Wrong;
                }
                return parse(&hello[4..]).map_or(Read::Wrong, Read::Hello);
            }
        }
        match records.0 {
            [] => return Read::More,
            [kind, ..] if *kind != HANDSHAKE => return Read::Wrong,
            [_, major, ..] if *major != 3 => return Read::Wrong,
            _ => {}
        }
        let Some(head) = records.take(5) else {
            return Read::More;
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > MAX_HELLO {
            return Read::Wrong;
        }
        let here = length.min(records.0.len());
        let whole = here == length;
        hello.extend(records.take(here).unwrap_or_default());
        if !whole {
            let wrong = hello.first().is_some_and(|kind| *kind != CLIENT_HELLO)
                || length_of(&hello).is_some_and(|length| length > MAX_HELLO);
            return if wrong { Read::Wrong } else { Read::More };
        }
    }
}

/// The length that the message itself gives.
fn length_of(hello: &[u8]) -> Option<usize> {
    let mut view = View(hello.get(1..)?);
    view.number(3)
}

fn parse(body: &[u8]) -> Option<Hello> {
    let mut view = View(body);
    view.take(2 + 32)?;
    view.counted(1)?;
    view.counted(2)?;
    view.counted(1)?;
    let mut hello = Hello {
        name: None,
        encrypted: false,
    };
    if view.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = view.counted(2)?;
    if !view.0.is_empty() {
        return None;
    }
    let mut named = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)? as u16;
        let content = extensions.counted(2)?;
        match kind {
            SERVER_NAME if named => return None,
            SERVER_NAME => {
                named = true;
                hello.name = Some(server_name(content)?);
            }
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_NAME => hello.encrypted = true,
            _ => {}
        }
    }
    Some(hello)
}

/// The one name of the list (RFC 6066): more than one, or one of another kind, could be read in two ways.
fn server_name(mut content: View<'_>) -> Option<String> {
    let mut list = content.counted(2)?;
    let kind = list.number(1)?;
    let name = list.counted(2)?;
    if kind != 0 || !list.0.is_empty() || !content.0.is_empty() || name.0.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(name.0).ok()?;
    text.is_ascii().then(|| text.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A hello with these extensions, in one record.
    pub fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let mut list = Vec::new();
        for (kind, content) in extensions {
            list.extend(kind.to_be_bytes());
            list.extend((content.len() as u16).to_be_bytes());
            list.extend(content);
        }
        body.extend((list.len() as u16).to_be_bytes());
        body.extend(list);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        record(&message)
    }

    fn record(content: &[u8]) -> Vec<u8> {
        let mut record = vec![22, 3, 1];
        record.extend((content.len() as u16).to_be_bytes());
        record.extend(content);
        record
    }

    /// The extension that names a server.
    pub fn name(text: &str) -> (u16, Vec<u8>) {
        let mut content = ((text.len() + 3) as u16).to_be_bytes().to_vec();
        content.push(0);
        content.extend((text.len() as u16).to_be_bytes());
        content.extend(text.as_bytes());
        (0, content)
    }

    fn said(name: Option<&str>, encrypted: bool) -> Read {
        Read::Hello(Hello {
            name: name.map(str::to_owned),
            encrypted,
        })
    }

    /// The name is found, and that there is none, and that the true one is hidden.
    #[test]
    fn names() {
        let other = (16, vec![0, 3, 2, b'h', b'2']);
        assert_eq!(
            read(&hello(&[other.clone(), name("a.test")])),
            said(Some("a.test"), false)
        );
        assert_eq!(read(&hello(&[other])), said(None, false));
        assert_eq!(
            read(&hello(&[name("cover.test"), (0xfe0d, vec![0; 40])])),
            said(Some("cover.test"), true)
        );
    }

    /// Wherever the hello is cut, into segments or into records of whatever size, it says the same in the end.
    #[test]
    fn fragments() {
        let whole = hello(&[name("a.test")]);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Read::More, "{end}");
        }
        for size in 1..whole.len() {
            let cut: Vec<u8> = whole[5..].chunks(size).flat_map(record).collect();
            assert_eq!(read(&cut), said(Some("a.test"), false), "{size}");
        }
    }

    /// What is no hello, or could be read in two ways, is refused, and no bytes whatever do harm.
    #[test]
    fn wrong() {
        let two = hello(&[name("a.test"), name("b.test")]);
        let (_, mut list) = name("a.test");
        list[1] += 9;
        list.extend([0, 0, 6]);
        list.extend(b"b.test");
        let long = [22, 3, 1, 0, 4, 1, 1, 0, 0];
        let mut trailing = hello(&[name("a.test")]);
        trailing[4] += 1;
        trailing.push(0);
        for bytes in [
            &b"GET / HTTP/1.1"[..],
            &[22, 2],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 1, 2],
            &two,
            &hello(&[(0, list)]),
            &hello(&[(0, vec![])]),
            &long,
            &trailing,
        ] {
            assert_eq!(read(bytes), Read::Wrong, "{bytes:?}");
        }
        let mut state = 1u32;
        for _ in 0..20_000 {
            let mut bytes = hello(&[name("a.test"), (0xfe0d, vec![1, 2, 3])]);
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = state as u8;
            }
            let _ = read(&bytes);
        }
    }
}
