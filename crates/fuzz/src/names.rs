//! Names of users, ports and paths.

use dsec_proxy::{host, target, token};
use dsec_session::passwd;
use hyper::header::{HeaderMap, HeaderValue, COOKIE};

/// A port's token: nothing of it is left in a request that goes in, however it was sent.
pub(crate) fn port_tokens(bytes: &[u8]) {
    const TOKEN: &str = "tokentokentoken";
    let parts: Vec<&[u8]> = bytes.splitn(3, |byte| *byte == b'\n').collect();
    let [cookie, named, query] = parts[..] else {
        return;
    };
    let mut headers = HeaderMap::new();
    for value in cookie.split(|byte| *byte == b'\r') {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(COOKIE, value);
        }
    }
    if let Ok(named) = std::str::from_utf8(named) {
        if let Some((port, id)) = host::parse(named, "localhost") {
            let again = format!("{port}-{id}.localhost");
            assert_eq!(host::parse(&again, "localhost"), Some((port, id)));
        }
    }
    let Ok(query) = std::str::from_utf8(query) else {
        return;
    };
    let found = token::find(&headers, Some(query), TOKEN);
    token::strip(&mut headers);
    let rest = token::without("/x", Some(query));
    let query = rest.split_once('?').map(|(_, query)| query);
    assert_eq!(token::find(&headers, query, TOKEN), None, "{found:?}");
    let cookies = headers.get_all(COOKIE).iter();
    let mut pairs = cookies.flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    assert!(pairs.all(|pair| {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii() != token::COOKIE_NAME.as_bytes()
    }));
}

/// A target below an endpoint: whoever resolves it, however often it is decoded, stays below.
pub(crate) fn endpoint_targets(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(joined) = target::join("/v1", text) else {
        return;
    };
    assert!(joined.starts_with("/v1/") && joined.bytes().all(|byte| byte.is_ascii_graphic()));
    let mut path = joined.split('?').next().unwrap_or_default().to_owned();
    for _ in 0..8 {
        let mut depth = 0_i32;
        for segment in path.split(['/', '\\']) {
            match segment.split(';').next().unwrap_or_default() {
                ".." => depth -= 1,
                "" | "." => {}
                _ => depth += 1,
            }
            assert!(depth >= 0, "{joined} climbs as {path}");
        }
        path = decoded(&path);
    }
}

fn decoded(path: &str) -> String {
    let mut out = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let value = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, value) {
            (b'%', Some(value)) => {
                out.push(value);
                rest = &after[2..];
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Users of an image's passwd and group: within the sandbox's range, of a home that is a path, few groups.
pub(crate) fn users(bytes: &[u8]) {
    let parts: Vec<&[u8]> = bytes.splitn(3, |byte| *byte == 0).collect();
    let [user, passwd, group] = parts[..] else {
        return;
    };
    let Ok(user) = std::str::from_utf8(user) else {
        return;
    };
    let Ok(found) = passwd::resolve(user, passwd, || Ok(group.to_vec())) else {
        return;
    };
    assert!(found.uid <= passwd::MAX_ID && found.gid <= passwd::MAX_ID);
    assert_eq!(found.groups.first(), Some(&found.gid));
    assert!(found.groups.iter().all(|gid| *gid <= passwd::MAX_ID));
    assert!(found.groups.len() <= 1025);
    assert!(found.home.starts_with(b"/") && !found.home.contains(&0));
}
