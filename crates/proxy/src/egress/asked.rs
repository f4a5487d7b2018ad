//! Which host a request of plain HTTP asks for, once and without doubt. Pure.

use hyper::header::{HeaderValue, HOST};
use hyper::{Method, Request, Uri};

use crate::headers;

/// Reads a request, and makes of it what the server shall see: the host once, the target its path alone, nothing by which
/// it could be taken for a request to somebody else. Returns the host as it was written.
///
/// # Errors
/// A sentence that says what could be read in two ways.
pub fn read<B>(request: &mut Request<B>) -> Result<String, &'static str> {
    headers::check_framing(request.version(), request.headers())?;
    if request.method() == Method::CONNECT {
        return Err("there is no way through a proxy here");
    }
    let mut given = request.headers().get_all(HOST).iter();
    let host = match (given.next(), given.next()) {
        (Some(host), None) => host.to_str().ok().map(str::to_owned),
        _ => None,
    };
    let host = host.ok_or("a request names its host once")?;
    let uri = request.uri().clone();
    if let Some(authority) = uri.authority() {
        let same = authority.as_str().eq_ignore_ascii_case(&host);
        if !same || uri.scheme_str() != Some("http") {
            return Err("the target and the host are not the same");
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let target = path.parse::<Uri>();
        *request.uri_mut() = target.map_err(|_| "the target is none")?;
    }
    let value = HeaderValue::from_str(&host).map_err(|_| "the host is none")?;
    request.headers_mut().insert(HOST, value);
    headers::undisguise(request.headers_mut());
    Ok(host)
}

/// Host and port of an authority.
#[must_use]
pub fn split(host: &str) -> (&str, Option<&str>) {
    if host.ends_with(']') {
        return (host, None);
    }
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port is told apart from an address of IPv6.
    #[test]
    fn authorities() {
        assert_eq!(split("a.test"), ("a.test", None));
        assert_eq!(split("a.test:80"), ("a.test", Some("80")));
        assert_eq!(split("[2001:db8::1]:80"), ("[2001:db8::1]", Some("80")));
        assert_eq!(split("[2001:db8::1]"), ("[2001:db8::1]", None));
        assert_eq!(split("a.test:"), ("a.test", Some("")));
    }

    /// A target in absolute form keeps its path alone, and must be the host's.
    #[test]
    fn absolute_targets() {
        let asked = |target: &str, host: &str| {
            let request = Request::get(target).header(HOST, host);
            let mut request = request.body(()).expect("is one");
            read(&mut request).map(|host| (host, request.uri().to_string()))
        };
        assert_eq!(
            asked("http://a.test/x?y", "A.test"),
            Ok(("A.test".to_owned(), "/x?y".to_owned()))
        );
        for (target, host) in [
            ("http://b.test/", "a.test"),
            ("http://a.test:81/", "a.test"),
            ("https://a.test/", "a.test"),
            ("http://b@a.test/", "a.test"),
        ] {
            assert!(asked(target, host).is_err(), "{target}");
        }
    }
}
