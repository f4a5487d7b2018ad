//! What may pass, by a compiled table. Pure; `dsec.network.evaluate` is the same in Python, held together by vectors.

use std::net::IpAddr;

use dsec_proto::egress::{EgressRule, EgressTable, Reason};
use dsec_proto::range::Range;

/// A table, ready to be asked.
#[derive(Debug)]
pub struct Policy {
    /// As it was told.
    pub table: EgressTable,
    rules: Vec<Rule>,
    closed: Vec<Range>,
    opened: Vec<Range>,
}

#[derive(Debug)]
struct Rule {
    allow: bool,
    domain: Option<Domain>,
    range: Option<Range>,
    ports: Vec<(u16, u16)>,
}

#[derive(Debug)]
enum Domain {
    Exact(String),
    /// With its dot before it.
    Below(String),
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may pass.
    pub allow: bool,
    /// Why not.
    pub reason: Reason,
    /// Whether the rule that decided names this port: whoever wrote it knows what is spoken there.
    pub port_is_named: bool,
}

impl Policy {
    /// A table as it was told. What cannot be read matches as its opposite is safe: a broken table allows nothing.
    #[must_use]
    pub fn new(table: EgressTable) -> Self {
        let ranges = |texts: &[String]| texts.iter().map(|text| Range::parse(text)).collect();
        let rules: Option<Vec<Rule>> = table.rules.iter().map(Rule::new).collect();
        let lists: (Option<Vec<Range>>, Option<Vec<Range>>) =
            (ranges(&table.closed), ranges(&table.opened));
        match (rules, lists) {
            (Some(rules), (Some(closed), Some(opened))) => Self {
                table,
                rules,
                closed,
                opened,
            },
            _ => Self {
                table: EgressTable {
                    allow: false,
                    rules: Vec::new(),
                    ..table
                },
                rules: Vec::new(),
                closed: Vec::new(),
                opened: Vec::new(),
            },
        }
    }

    /// Whether an address is one that nothing reaches.
    #[must_use]
    pub fn is_protected(&self, address: IpAddr) -> bool {
        !self.is_opened(address) && self.closed.iter().any(|range| range.contains(address))
    }

    /// Whether the operator has made an exception for it.
    #[must_use]
    pub fn is_opened(&self, address: IpAddr) -> bool {
        self.opened.iter().any(|range| range.contains(address))
    }

    /// Whether any rule knows names.
    #[must_use]
    pub fn knows_names(&self) -> bool {
        self.rules.iter().any(|rule| rule.domain.is_some())
    }

    /// Whether a connection may pass. A name that nobody has given is one that every denial means and no permission.
    #[must_use]
    pub fn decide(&self, name: Option<&str>, address: IpAddr, port: u16) -> Verdict {
        if self.is_protected(address) {
            return Verdict {
                allow: false,
                reason: Reason::ProtectedAddress,
                port_is_named: false,
            };
        }
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.matches(name, address, port));
        Verdict {
            allow: rule.map_or(self.table.allow, |rule| rule.allow),
            reason: Reason::Policy,
            port_is_named: rule.is_some_and(|rule| !rule.ports.is_empty()),
        }
    }

    /// Whether a name may be looked up: whether a rule for names, or one for any host, lets some connection to it pass.
    #[must_use]
    pub fn may_resolve(&self, name: &str) -> bool {
        for rule in &self.rules {
            let unbounded = rule.range.is_none() && rule.ports.is_empty();
            match &rule.domain {
                Some(domain) if !domain.matches(name) => {}
                Some(_) if rule.allow => return true,
                None if rule.allow && rule.range.is_none() => return true,
                Some(_) | None if !rule.allow && unbounded => return false,
                Some(_) | None => {}
            }
        }
        self.table.allow
    }

    /// Whether a rule denies any of these names altogether.
    #[must_use]
    pub fn denies_any(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.denies_name(name))
    }

    /// Whether a rule denies a name altogether: also when another name leads to it.
    #[must_use]
    pub fn denies_name(&self, name: &str) -> bool {
        let named = self.rules.iter().find(|rule| {
            rule.domain
                .as_ref()
                .is_some_and(|domain| domain.matches(name))
        });
        named.is_some_and(|rule| !rule.allow && rule.range.is_none() && rule.ports.is_empty())
    }
}

impl Rule {
    fn new(told: &EgressRule) -> Option<Self> {
        let range = match &told.range {
            None => None,
            Some(text) => Some(Range::parse(text)?),
        };
        let domain = told
            .domain
            .as_deref()
            .map(|text| match text.strip_prefix('*') {
                Some(below) => Domain::Below(below.to_owned()),
                None => Domain::Exact(text.to_owned()),
            });
        Some(Self {
            allow: told.allow,
            domain,
            range,
            ports: told.ports.clone(),
        })
    }

    fn matches(&self, name: Option<&str>, address: IpAddr, port: u16) -> bool {
        let named = match (&self.domain, name) {
            (None, _) => true,
            (Some(domain), Some(name)) => domain.matches(name),
            (Some(_), None) => !self.allow,
        };
        let ported = self.ports.is_empty()
            || self
                .ports
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&port));
        named && ported && self.range.is_none_or(|range| range.contains(address))
    }
}

impl Domain {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(domain) => domain == name,
            Self::Below(domain) => name.len() > domain.len() && name.ends_with(domain.as_str()),
        }
    }
}

/// A host name as everybody compares it: lower case, without a dot at its end. `None` for what is none.
#[must_use]
pub fn name_of(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |part: &str| (1..=63).contains(&part.len()) && part.bytes().all(plain);
    let is_name = (1..=253).contains(&text.len()) && text.split('.').all(label);
    // Something that some reader takes for an address is no name.
    let last = text.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.starts_with("0x")
        || last.starts_with("0X");
    (is_name && !numeric).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        table: EgressTable,
        asked: Vec<Asked>,
        names: Vec<(String, bool)>,
    }

    #[derive(serde::Deserialize)]
    struct Asked {
        name: Option<String>,
        address: String,
        port: u16,
        allow: bool,
        reason: Reason,
    }

    /// Every table of the vectors decides as Python's reference does.
    #[test]
    fn vectors() {
        let text = include_str!("../../../../tests/golden/egress.json");
        let cases: Vec<Case> = serde_json::from_str(text).expect("is read");
        assert!(cases.len() > 5);
        for case in cases {
            let policy = Policy::new(case.table);
            for asked in case.asked {
                let address = asked.address.parse().expect("is an address");
                let verdict = policy.decide(asked.name.as_deref(), address, asked.port);
                assert_eq!(verdict.allow, asked.allow, "{:?} {address}", asked.name);
                assert!(asked.allow || verdict.reason == asked.reason, "{address}");
            }
            for (name, may) in case.names {
                assert_eq!(policy.may_resolve(&name), may, "{name}");
            }
        }
    }

    /// Names are compared in one form, and what some reader could take for an address is none.
    #[test]
    fn names() {
        assert_eq!(
            name_of("A.Example.TEST.").as_deref(),
            Some("a.example.test")
        );
        assert_eq!(name_of("xn--a_b.test").as_deref(), Some("xn--a_b.test"));
        for text in [
            "", ".", "a..b", "10.0.0.1", "1.2", "0x7f.0x1", "a b", "a/b", "[::1]", "é.test", "a:80",
        ] {
            assert_eq!(name_of(text), None, "{text}");
        }
    }
}
