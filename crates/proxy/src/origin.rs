//! What keeps a port's origin to itself in a browser that has been to others. Pure.
//!
//! A browser holds the cookies of many sandboxes' ports, and pages that any of them has written. By its host alone each
//! is a stranger to the others; here is what hosts do not settle.

use hyper::header::{HeaderMap, HeaderName, HeaderValue, HOST, ORIGIN, SET_COOKIE};
use hyper::Method;

use crate::token::COOKIE_NAME;

/// What a page could reach past its own host with: other hosts' cookies and storage, other servers in this one's name.
const REACHING: [&str; 4] = [
    "alt-svc",
    "clear-site-data",
    "service-worker-allowed",
    "strict-transport-security",
];
const AGENT_CLUSTER: HeaderName = HeaderName::from_static("origin-agent-cluster");

/// Whether a request that a browser sent with the port's cookie was made by a page of this very origin, by its user, or
/// as a visit: a whole page, of which whoever led there sees nothing.
///
/// A program that is no browser says none of this, and is believed: it has no cookies of others.
#[must_use]
pub fn is_own(method: &Method, headers: &HeaderMap) -> bool {
    let said = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Some(""),
            (Some(value), None) => value.to_str().ok(),
            _ => None,
        }
    };
    let (Some(site), Some(mode), Some(for_what), Some(origin)) = (
        said("sec-fetch-site"),
        said("sec-fetch-mode"),
        said("sec-fetch-dest"),
        said(ORIGIN.as_str()),
    ) else {
        return false;
    };
    let ours = said(HOST.as_str()).unwrap_or_default();
    let named = origin.split_once("://").map(|(_, authority)| authority);
    if !origin.is_empty() && !named.is_some_and(|named| named.eq_ignore_ascii_case(ours)) {
        return false;
    }
    match site {
        "" | "none" | "same-origin" => true,
        _ => {
            matches!(*method, Method::GET | Method::HEAD)
                && mode == "navigate"
                && for_what == "document"
        }
    }
}

/// Takes out of an answer what is about more than its own origin, and says that it is an origin of its own.
pub fn confine(headers: &mut HeaderMap) {
    for name in REACHING {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> = headers
        .get_all(SET_COOKIE)
        .iter()
        .filter_map(host_only)
        .collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        headers.append(SET_COOKIE, cookie);
    }
    headers.insert(AGENT_CLUSTER, HeaderValue::from_static("?1"));
}

/// The cookie without a Domain; none at all where it would take the place of the port's own.
fn host_only(cookie: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let pair = parts.next()?;
    // A cookie without a name is sent as its value alone, which may look like another's name and value.
    let shown = pair
        .iter()
        .position(|byte| !byte.is_ascii_whitespace() && *byte != b'=')?;
    if pair[shown..]
        .to_ascii_lowercase()
        .starts_with(COOKIE_NAME.as_bytes())
    {
        return None;
    }
    let mut kept = pair.to_vec();
    for part in parts {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        if !name.trim_ascii().eq_ignore_ascii_case(b"domain") {
            kept.push(b';');
            kept.extend_from_slice(part);
        }
    }
    HeaderValue::from_bytes(&kept).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::map;

    fn own(method: &Method, more: &[(&'static str, &'static str)]) -> bool {
        let mut pairs = vec![("host", "80-sb-a-b.localhost:7373")];
        pairs.extend_from_slice(more);
        is_own(method, &map(&pairs))
    }

    /// A page of the port itself, its user, a visit from elsewhere, and a program that is no browser.
    #[test]
    fn those_that_may() {
        for more in [
            &[][..],
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            &[
                ("sec-fetch-site", "same-origin"),
                ("origin", "http://80-SB-a-b.localhost:7373"),
            ],
            &[("origin", "https://80-sb-a-b.localhost:7373")],
        ] {
            assert!(own(&Method::POST, more), "{more:?}");
        }
        let visit = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(own(&Method::GET, &visit));
        assert!(!own(&Method::POST, &visit));
    }

    /// Requests, frames, scripts and WebSockets of pages of other origins.
    #[test]
    fn those_that_may_not() {
        for more in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "iframe"),
            ],
            &[("origin", "http://81-sb-a-b.localhost:7373")],
            &[("origin", "http://80-sb-a-b.localhost:1")],
            &[("origin", "null")],
            &[
                ("origin", "http://80-sb-a-b.localhost:7373"),
                ("origin", "null"),
            ],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(!own(&Method::GET, more), "{more:?}");
        }
    }

    /// Cookies keep all but their Domain; what would be taken for the port's own goes, and so does what reaches further.
    #[test]
    fn answers() {
        let mut headers = map(&[
            ("set-cookie", "a=b; Domain=localhost; Path=/; Secure"),
            ("set-cookie", "c=d;dOmain = x"),
            ("set-cookie", "dsec_port_token=stolen"),
            ("set-cookie", " =dsec_port_token=stolen; Path=/"),
            ("set-cookie", "DSEC_PORT_TOKEN=stolen"),
            ("set-cookie", "e=domain=f"),
            ("clear-site-data", "\"*\""),
            ("alt-svc", "h3=\":443\""),
            ("strict-transport-security", "max-age=1"),
            ("service-worker-allowed", "/"),
            ("origin-agent-cluster", "?0"),
            ("access-control-allow-origin", "*"),
        ]);
        confine(&mut headers);
        let wanted = map(&[
            ("set-cookie", "a=b; Path=/; Secure"),
            ("set-cookie", "c=d"),
            ("set-cookie", "e=domain=f"),
            ("access-control-allow-origin", "*"),
            ("origin-agent-cluster", "?1"),
        ]);
        assert_eq!(headers, wanted);
    }
}
