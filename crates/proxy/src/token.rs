//! The token of an exposed port in a request, and what is left of the request without it. Pure.

use hyper::header::{HeaderMap, HeaderValue, COOKIE};

/// Header, cookie and query parameter that carry it.
pub const HEADER: &str = "dsec-port-token";
/// Name of the cookie.
pub const COOKIE_NAME: &str = "dsec_port_token";
/// Name of the query parameter.
pub const PARAMETER: &str = "dsec_port_token";

/// Where a request's token was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the header.
    Header,
    /// In the cookie.
    Cookie,
    /// In the query.
    Query,
}

/// Where the right token is in this request, if anywhere.
#[must_use]
pub fn find(headers: &HeaderMap, query: Option<&str>, token: &str) -> Option<Found> {
    let header = headers
        .get_all(HEADER)
        .iter()
        .any(|value| same(value.as_bytes(), token));
    if header {
        return Some(Found::Header);
    }
    if cookies(headers).any(|(name, value)| name == COOKIE_NAME && same(value.as_bytes(), token)) {
        return Some(Found::Cookie);
    }
    let pairs = query
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .any(|(name, value)| name == PARAMETER && same(value.as_bytes(), token))
        .then_some(Found::Query)
}

/// Compares without telling by the time taken how much was right.
fn same(given: &[u8], token: &str) -> bool {
    let token = token.as_bytes();
    let differing = given
        .iter()
        .zip(token)
        .fold(0, |found, (one, other)| found | (one ^ other));
    given.len() == token.len() && !token.is_empty() && std::hint::black_box(differing) == 0
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
}

/// Takes the token out of header and cookies: what runs in the sandbox has no business with it.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(HEADER);
    let mut others = Vec::new();
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else { continue };
        let kept = text
            .split(';')
            .map(str::trim)
            // Some readers take blanks off names.
            .filter(|pair| pair.split('=').next().map(str::trim) != Some(COOKIE_NAME));
        others.push(kept.collect::<Vec<_>>().join("; "));
    }
    headers.remove(COOKIE);
    for text in others.iter().filter(|text| !text.is_empty()) {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.append(COOKIE, value);
        }
    }
}

/// Path and query without the token.
#[must_use]
pub fn without(path: &str, query: Option<&str>) -> String {
    let kept = |pair: &&str| pair.split('=').next() != Some(PARAMETER);
    let rest = query
        .unwrap_or_default()
        .split('&')
        .filter(kept)
        .collect::<Vec<_>>()
        .join("&");
    if rest.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::map;

    /// The token is found in each of its places, and a wrong, shorter, longer or empty one nowhere.
    #[test]
    fn places() {
        let none = HeaderMap::new();
        assert_eq!(
            find(&map(&[(HEADER, "secret")]), None, "secret"),
            Some(Found::Header)
        );
        assert_eq!(
            find(
                &map(&[("cookie", "a=b; dsec_port_token=secret")]),
                None,
                "secret"
            ),
            Some(Found::Cookie)
        );
        assert_eq!(
            find(&none, Some("x=1&dsec_port_token=secret"), "secret"),
            Some(Found::Query)
        );
        for wrong in ["secre", "secrets", "Secret", ""] {
            let headers = map(&[("cookie", "dsec_port_token=secre"), (HEADER, "no")]);
            assert_eq!(
                find(
                    &headers,
                    Some(&format!("dsec_port_token={wrong}")),
                    "secret"
                ),
                None
            );
        }
        assert_eq!(find(&map(&[(HEADER, "")]), None, ""), None);
    }

    /// The program inside never sees it; everything else goes on as it was.
    #[test]
    fn taken_out() {
        let mut headers = map(&[
            (HEADER, "secret"),
            ("cookie", "a=b; dsec_port_token=secret; c=d"),
            ("cookie", "e=f"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=b; c=d"), ("cookie", "e=f")]));
        assert_eq!(
            without("/x", Some("a=1&dsec_port_token=secret&b")),
            "/x?a=1&b"
        );
        assert_eq!(without("/x", Some("dsec_port_token=secret")), "/x");
        assert_eq!(without("/x", None), "/x");
    }
}
