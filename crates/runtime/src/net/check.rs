//! What the edge says about ports and endpoints, checked as hostile. Pure.

use std::collections::HashSet;

use dsec_proto::egress::{
    EgressTable, RoutedRule, MAX_RANGES, MAX_ROUTED, MAX_RULES, TABLE_VERSION,
};
use dsec_proto::error::{WireError, WireResult};
use dsec_proto::net::{EndpointSpec, PortSpec, MAX_ENDPOINTS, MAX_PORTS};
use dsec_proto::range::Range;

const MAX_HOST: usize = 253;
const MAX_PATH: usize = 2048;
const MAX_CONNECTIONS: u32 = 4096;
const MAX_TABLE: usize = 64 * 1024;

/// Exposed ports.
///
/// # Errors
/// `invalid_argument`.
pub fn ports(ports: &[PortSpec]) -> WireResult<()> {
    let wrong = |what: String| Err(WireError::invalid(what).with("field", "ports"));
    if ports.len() > MAX_PORTS {
        return wrong(format!("at most {MAX_PORTS} ports can be exposed"));
    }
    let mut seen = HashSet::new();
    for spec in ports {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let strong = (16..=128).contains(&spec.token.len()) && spec.token.bytes().all(plain);
        if spec.port == 0 || !strong || !seen.insert(spec.port) {
            return wrong(format!("port {} cannot be exposed so", spec.port));
        }
    }
    Ok(())
}

/// Endpoints. Errors name them, and nothing of their URLs.
///
/// # Errors
/// `invalid_argument`.
pub fn endpoints(endpoints: &[EndpointSpec]) -> WireResult<()> {
    let wrong = |what: String| Err(WireError::invalid(what).with("field", "endpoints"));
    if endpoints.len() > MAX_ENDPOINTS {
        return wrong(format!("a sandbox has at most {MAX_ENDPOINTS} endpoints"));
    }
    let mut seen = HashSet::new();
    for spec in endpoints {
        if !is_name(&spec.name) || !seen.insert(spec.name.as_str()) {
            return wrong("an endpoint's name is no label, or is given twice".into());
        }
        if !is_host(&spec.host) || spec.port == 0 || !is_path(&spec.path) {
            return wrong(format!("endpoint {}: not a URL", spec.name));
        }
        let some = |limit: Option<u64>| limit != Some(0);
        let limits = (1..=MAX_CONNECTIONS).contains(&spec.max_connections)
            && some(spec.max_bytes)
            && some(spec.max_requests_per_minute.map(u64::from));
        if !limits {
            return wrong(format!("endpoint {}: a limit is out of range", spec.name));
        }
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let address = text.parse::<std::net::Ipv6Addr>().is_ok();
    (1..=MAX_HOST).contains(&text.len())
        && text.bytes().all(plain)
        && (address || !text.contains(':'))
}

fn is_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#\\".contains(&byte);
    text.is_empty()
        || (text.starts_with('/')
            && !text.starts_with("//")
            && !text.ends_with('/')
            && text.len() <= MAX_PATH
            && text.bytes().all(plain)
            && !text.split('/').any(|part| part == "." || part == ".."))
}

/// A compiled policy.
///
/// # Errors
/// `invalid_argument`.
pub fn egress(table: &EgressTable) -> WireResult<()> {
    let wrong = |what: String| Err(WireError::invalid(what).with("field", "egress"));
    if table.version != TABLE_VERSION {
        return wrong(format!("tables of version {} are not known", table.version));
    }
    if table.rules.len() > MAX_RULES || table.closed.len().max(table.opened.len()) > MAX_RANGES {
        return wrong(format!("at most {MAX_RULES} rules and {MAX_RANGES} ranges"));
    }
    for rule in &table.rules {
        let named = rule.domain.as_deref().is_none_or(is_domain);
        let ranged = rule.range.as_deref().is_none_or(is_range);
        let ports = rule.ports.len() <= 64 && rule.ports.iter().all(|(first, last)| first <= last);
        if !named || !ranged || !ports {
            return wrong("a rule is none".into());
        }
    }
    if !table
        .closed
        .iter()
        .chain(&table.opened)
        .all(|text| is_range(text))
    {
        return wrong("a range is none".into());
    }
    let counted: usize = table
        .routed
        .iter()
        .map(|rule| rule.ports.len().max(1))
        .sum();
    if counted > MAX_ROUTED || !table.routed.iter().all(is_routed) {
        return wrong("a rule for what is routed is none, or there are too many".into());
    }
    // All about a sandbox goes to the proxy in one packet.
    if rmp_serde::to_vec_named(table).map_or(usize::MAX, |bytes| bytes.len()) > MAX_TABLE {
        return wrong(format!("a table has at most {MAX_TABLE} bytes"));
    }
    let some = |limit: Option<u64>| limit != Some(0);
    let limits = (1..=MAX_CONNECTIONS).contains(&table.max_connections)
        && some(table.max_connections_per_minute.map(u64::from))
        && some(table.max_bytes)
        && some(table.max_bytes_per_s);
    if !limits {
        return wrong("a limit is out of range".into());
    }
    Ok(())
}

fn is_routed(rule: &RoutedRule) -> bool {
    let four = |text: &str| Range::parse(text).is_some_and(|range| range.four().is_some());
    let ported = matches!(rule.protocol, 6 | 17);
    (ported || (matches!(rule.protocol, 0 | 1) && rule.ports.is_empty()))
        && rule.range.as_deref().is_none_or(four)
        && rule.ports.iter().all(|(first, last)| first <= last)
}

fn is_range(text: &str) -> bool {
    Range::parse(text).is_some()
}

/// A name in lower case, or one with `*.` before it.
fn is_domain(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    let label = |part: &str| (1..=63).contains(&part.len()) && part.bytes().all(plain);
    (1..=MAX_HOST).contains(&name.len()) && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsec_proto::egress::EgressRule;

    fn spec() -> EndpointSpec {
        EndpointSpec {
            name: "llm".into(),
            tls: false,
            host: "127.0.0.1".into(),
            port: 8000,
            path: "/v1".into(),
            max_connections: 64,
            max_bytes: None,
            max_requests_per_minute: None,
            closed: false,
        }
    }

    /// Names, hosts, paths and limits that could mean something else than they say are refused.
    #[test]
    fn endpoints_are_plain() {
        assert!(endpoints(&[spec()]).is_ok());
        let wrong: [fn(&mut EndpointSpec); 12] = [
            |spec| spec.name = "a.b".into(),
            |spec| spec.name = "a\n1.2.3.4 github.com".into(),
            |spec| spec.name = String::new(),
            |spec| spec.host = "a b".into(),
            |spec| spec.host = "user@host".into(),
            |spec| spec.host = "a:b".into(),
            |spec| spec.port = 0,
            |spec| spec.path = "v1".into(),
            |spec| spec.path = "/v1/../x".into(),
            |spec| spec.path = "/v1\r\nHost: x".into(),
            |spec| spec.max_connections = 0,
            |spec| spec.max_bytes = Some(0),
        ];
        for change in wrong {
            let mut changed = spec();
            change(&mut changed);
            assert!(endpoints(&[changed.clone()]).is_err(), "{changed:?}");
        }
        assert!(endpoints(&[spec(), spec()]).is_err());
    }

    /// Tables of another version, or with names, ranges, ports or limits that are none, are refused.
    #[test]
    fn tables_are_plain() {
        let rule = |domain: Option<&str>, range: Option<&str>| EgressRule {
            allow: true,
            domain: domain.map(str::to_owned),
            range: range.map(str::to_owned),
            ports: vec![(443, 443)],
        };
        let routed = |protocol, range: &str, ports: &[(u16, u16)]| RoutedRule {
            allow: true,
            protocol,
            range: Some(range.into()),
            ports: ports.to_vec(),
        };
        let table = EgressTable {
            version: TABLE_VERSION,
            allow: false,
            rules: vec![
                rule(Some("*.a-b.test"), None),
                rule(None, Some("2001:db8::/32")),
            ],
            closed: vec!["10.0.0.0/8".into()],
            opened: Vec::new(),
            ech: false,
            max_connections: 1,
            max_connections_per_minute: None,
            max_bytes: None,
            max_bytes_per_s: None,
            routed: vec![routed(17, "192.0.2.0/24", &[(53, 53), (1, 9)])],
        };
        assert!(egress(&table).is_ok());
        let wrong: [fn(&mut EgressTable); 17] = [
            |table| table.version += 1,
            |table| table.rules[0].domain = Some("*".into()),
            |table| table.rules[0].domain = Some("*.*.test".into()),
            |table| table.rules[0].domain = Some("A.test".into()),
            |table| table.rules[0].domain = Some("a..test".into()),
            |table| table.rules[0].domain = Some("a.test.".into()),
            |table| table.rules[1].range = Some("10.0.0.1/33".into()),
            |table| table.rules[1].ports = vec![(2, 1)],
            |table| table.closed.push("x".into()),
            |table| table.max_connections = 0,
            |table| table.max_bytes = Some(0),
            |table| table.routed[0].protocol = 2,
            |table| table.routed[0].protocol = 1,
            |table| table.routed[0].range = Some("2001:db8::/32".into()),
            |table| table.routed[0].ports = vec![(2, 1)],
            |table| table.routed = vec![table.routed[0].clone(); MAX_ROUTED / 2 + 1],
            |table| {
                table.rules[1].ports = vec![(50_000, 60_000); 64];
                table.rules = vec![table.rules[1].clone(); MAX_RULES];
            },
        ];
        for change in wrong {
            let mut changed = table.clone();
            change(&mut changed);
            assert!(egress(&changed).is_err(), "{changed:?}");
        }
    }

    /// A port comes once, with a token that cannot be guessed or end a header.
    #[test]
    fn ports_are_plain() {
        let of = |port, token: &str| PortSpec {
            port,
            token: token.into(),
        };
        let good = "abcdefghijklmnop";
        assert!(ports(&[of(80, good), of(81, good)]).is_ok());
        assert!(ports(&[of(80, good), of(80, good)]).is_err());
        for (port, token) in [
            (0, good),
            (80, "short"),
            (80, "abcdefghijklmnop\r\n"),
            (80, ""),
        ] {
            assert!(ports(&[of(port, token)]).is_err());
        }
    }
}
