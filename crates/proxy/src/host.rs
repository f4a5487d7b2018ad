//! The origin of an exposed port, `PORT-ID.DOMAIN`, as a request's Host names it. Pure.

/// Port and sandbox of a Host; `None` for any other. The API's own port may follow.
#[must_use]
pub fn parse(host: &str, domain: &str) -> Option<(u16, String)> {
    let host = host.to_ascii_lowercase();
    let name = match host.rsplit_once(':') {
        Some((name, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            name
        }
        Some(_) => return None,
        None => &host,
    };
    let (port, sandbox) = name
        .strip_suffix(domain)?
        .strip_suffix('.')?
        .split_once('-')?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) || port.starts_with('0') {
        return None;
    }
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !sandbox.starts_with("sb-") || !sandbox.bytes().all(plain) {
        return None;
    }
    Some((port.parse().ok()?, sandbox.to_owned()))
}

#[cfg(test)]
mod tests {
    fn parse(host: &str) -> Option<(u16, String)> {
        super::parse(host, "localhost")
    }

    const ID: &str = "sb-local-abcdefghijklmnopqrstuvwxyz";

    /// A port's origin is recognised with and without the API's port, in any case.
    #[test]
    fn origins() {
        let wanted = Some((3000, ID.to_owned()));
        assert_eq!(parse(&format!("3000-{ID}.localhost:7373")), wanted);
        assert_eq!(
            parse(&format!("3000-{}.LOCALHOST", ID.to_uppercase())),
            wanted
        );
    }

    /// Where the operator names a domain it is that one, and localhost is none.
    #[test]
    fn domains() {
        let domain = "ports.example";
        let host = format!("3000-{ID}.ports.example");
        assert_eq!(super::parse(&host, domain), Some((3000, ID.to_owned())));
        for other in ["localhost", "example", "xports.example", "a.ports.example"] {
            assert_eq!(
                super::parse(&format!("3000-{ID}.{other}"), domain),
                None,
                "{other}"
            );
        }
    }

    /// Anything else is no origin of a port.
    #[test]
    fn others() {
        for host in [
            "",
            "localhost",
            "127.0.0.1:7373",
            "3000.localhost",
            "70000-sb-a-b.localhost",
            "0-sb-a-b.localhost",
            "03000-sb-a-b.localhost",
            "+80-sb-a-b.localhost",
            "80-sb-a-b.localhost.evil",
            "80-sb-a-b.localhost:",
            "80-sb-a-b.localhost:x",
            "80-sb-a.b.localhost",
            "80-xx-a-b.localhost",
            "a@80-sb-a-b.localhost",
        ] {
            assert_eq!(parse(host), None, "{host}");
        }
    }
}
