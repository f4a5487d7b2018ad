//! Which headers go on and which end here. Pure.

use hyper::header::{HeaderMap, HeaderName, HeaderValue, CONNECTION, CONTENT_LENGTH, UPGRADE};
use hyper::{Method, Version};

/// Of one connection only (RFC 9110, 7.6.1), and framing, which is made anew.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];
/// By which some servers let a request say that it is another one than it is.
const DISGUISES: [&str; 5] = [
    "forwarded",
    "x-host",
    "x-http-host-override",
    "x-real-ip",
    "client-ip",
];
const DISGUISE_FAMILIES: [&str; 3] = ["x-forwarded-", "x-original-", "x-rewrite-"];

/// Whether the request asks to become a WebSocket. No other upgrade passes: `h2c` would carry requests unseen.
#[must_use]
pub fn wants_websocket(method: &Method, version: Version, headers: &HeaderMap) -> bool {
    let upgrade = headers.get_all(UPGRADE).iter().collect::<Vec<_>>();
    let asked = upgrade.len() == 1 && upgrade[0].as_bytes().eq_ignore_ascii_case(b"websocket");
    let bodiless =
        !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key("transfer-encoding");
    method == Method::GET
        && version == Version::HTTP_11
        && asked
        && bodiless
        && names_upgrade(headers)
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    listed(headers).iter().any(|name| name == "upgrade")
}

/// What the Connection headers list.
fn listed(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(CONNECTION).iter();
    let words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.map(|word| word.trim().to_ascii_lowercase()).collect()
}

/// Takes out what belongs to one connection, whatever a request says that this is but for its host: without one it would be
/// a request to whoever is the server's first.
pub fn strip(headers: &mut HeaderMap) {
    for name in listed(headers).iter().filter(|name| *name != "host") {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}

/// Takes out what a sandbox could use to be taken for somebody else.
pub fn undisguise(headers: &mut HeaderMap) {
    let found = |name: &&HeaderName| {
        DISGUISES.contains(&name.as_str())
            || DISGUISE_FAMILIES
                .iter()
                .any(|family| name.as_str().starts_with(family))
    };
    let names: Vec<HeaderName> = headers.keys().filter(found).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Asks for (or confirms) the change to a WebSocket.
pub fn upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Refuses requests whose end two readers could see in two places.
///
/// # Errors
/// A sentence.
pub fn check_framing(version: Version, headers: &HeaderMap) -> Result<(), &'static str> {
    if version != Version::HTTP_11 && version != Version::HTTP_10 {
        return Err("only HTTP/1.1 is spoken here");
    }
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let codings: Vec<_> = headers.get_all("transfer-encoding").iter().collect();
    if lengths > 1 || codings.len() > 1 || (lengths == 1 && !codings.is_empty()) {
        return Err("the request's length is given more than once");
    }
    if codings
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err("the only transfer coding here is chunked");
    }
    if version == Version::HTTP_10 && !codings.is_empty() {
        return Err("HTTP/1.0 knows no transfer codings");
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// Headers of one connection go, those that Connection lists too; the others stay.
    #[test]
    fn hop_by_hop_goes() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
            ("authorization", "Bearer x"),
            ("te", "trailers"),
        ]);
        strip(&mut headers);
        assert_eq!(
            headers,
            map(&[("accept", "*/*"), ("authorization", "Bearer x")])
        );
    }

    /// No request loses its host by listing it.
    #[test]
    fn the_host_stays() {
        let mut headers = map(&[
            ("connection", "Host, x-mine"),
            ("host", "a"),
            ("x-mine", "1"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("host", "a")]));
    }

    /// What some servers take for the real host, path or client goes.
    #[test]
    fn disguises_go() {
        let mut headers = map(&[
            ("x-forwarded-host", "a"),
            ("forwarded", "host=a"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/a"),
            ("x-forwarded-for", "::1"),
            ("x-api-key", "k"),
        ]);
        undisguise(&mut headers);
        assert_eq!(headers, map(&[("x-api-key", "k")]));
    }

    /// Two lengths, a length beside chunks, and odd codings are refused.
    #[test]
    fn framing() {
        let refused = |pairs: &[_]| check_framing(Version::HTTP_11, &map(pairs)).is_err();
        assert!(!refused(&[("content-length", "3")]));
        assert!(!refused(&[("transfer-encoding", "Chunked")]));
        assert!(refused(&[("content-length", "3"), ("content-length", "3")]));
        assert!(refused(&[
            ("content-length", "3"),
            ("transfer-encoding", "chunked")
        ]));
        assert!(refused(&[
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "identity")
        ]));
        assert!(refused(&[("transfer-encoding", "gzip, chunked")]));
        assert!(refused(&[("transfer-encoding", "\tchunked")]));
        assert!(
            check_framing(Version::HTTP_10, &map(&[("transfer-encoding", "chunked")])).is_err()
        );
    }

    /// Only a plain GET becomes a WebSocket; an h2c upgrade, which would carry requests unseen, does not.
    #[test]
    fn only_websockets() {
        let wants =
            |method: Method, pairs: &[_]| wants_websocket(&method, Version::HTTP_11, &map(pairs));
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
        ];
        assert!(wants(Method::GET, &good));
        assert!(!wants(Method::POST, &good));
        assert!(!wants(
            Method::GET,
            &[("connection", "Upgrade"), ("upgrade", "h2c")]
        ));
        assert!(!wants(
            Method::GET,
            &[("connection", "Upgrade"), ("upgrade", "websocket, h2c")]
        ));
        assert!(!wants(Method::GET, &[("upgrade", "websocket")]));
        assert!(!wants(
            Method::GET,
            &[good[0], good[1], ("content-length", "5")]
        ));
    }
}
