//! What connections and questions of a sandbox say, read as the proxy and as the other side read it.

use std::net::{IpAddr, Ipv4Addr};

use dsec_proto::egress::EgressTable;
use dsec_proxy::egress::policy::{name_of, Policy};
use dsec_proxy::egress::sniff::Kind;
use dsec_proxy::egress::{dns, hello, sniff};
use rustls::server::Acceptor;

use crate::upstream;

/// A hello of TLS: a server that understands it reads the name that was read here.
pub(crate) fn client_hello(bytes: &[u8]) {
    let read = hello::read(bytes);
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while matches!(acceptor.read_tls(&mut rest), Ok(1..)) {}
    let Ok(Some(accepted)) = acceptor.accept() else {
        return;
    };
    let hello = accepted.client_hello();
    match (read, hello.server_name()) {
        (hello::Read::Hello(ours), Some(theirs)) => {
            let ours = ours.name.as_deref().and_then(name_of);
            assert_eq!(ours, name_of(theirs), "{theirs:?} is another name");
        }
        // Cut short: more bytes are waited for.
        (hello::Read::More | hello::Read::Wrong | hello::Read::Hello(_), _) => {}
    }
}

/// The kind of a connection: once it is clear it stays so, and no request is taken for something else.
pub(crate) fn first_bytes(bytes: &[u8]) {
    let kind = sniff::kind(bytes);
    for end in [bytes.len() / 3, bytes.len() / 2, bytes.len().max(1) - 1] {
        let early = sniff::kind(&bytes[..end]);
        assert!(early == Kind::More || early == kind, "{early:?}, {kind:?}");
    }
    if upstream::is_request(bytes) {
        assert!(
            matches!(kind, Kind::Http | Kind::Http2 | Kind::Malformed),
            "a request passes as {kind:?}"
        );
    }
}

/// A question of a sandbox, and its answer: who asked reads from it what was answered.
pub(crate) fn dns_questions(bytes: &[u8]) {
    let Some(Ok(question)) = dns::question(bytes) else {
        return;
    };
    let Some(name) = &question.name else {
        return;
    };
    assert_eq!(name_of(name).as_ref(), Some(name));
    let address: IpAddr = match question.kind {
        dns::AAAA => "2001:db8::1".parse().expect("an address"),
        _ => Ipv4Addr::new(192, 0, 2, 1).into(),
    };
    let addresses = &[address; 8][..bytes.len() % 9];
    let answer = dns::answer(&question, dns::OK, addresses, 7);
    let said = dns::said(&answer, question.id, name, question.kind).expect("is read");
    assert_eq!(said.chain, [name.as_str()]);
    if question.is_for_addresses() {
        assert_eq!(said.addresses, addresses);
    }
    let asked = dns::ask(question.id, name, question.kind);
    let again = dns::question(&asked).expect("is one").expect("is read");
    assert_eq!(again.name.as_ref(), Some(name));
}

/// What a resolver says: bounded, of the family that was asked for, of the name that was asked for.
pub(crate) fn dns_answers(bytes: &[u8]) {
    for kind in [dns::A, dns::AAAA] {
        let Some(said) = dns::said(bytes, 7, "a.test", kind) else {
            continue;
        };
        assert_eq!(said.chain.first().map(String::as_str), Some("a.test"));
        assert!(said.chain.len() <= 16 && said.addresses.len() <= 256);
        assert!(said
            .chain
            .iter()
            .all(|name| name.len() <= 255 && *name == name.to_ascii_lowercase()));
        assert!(said
            .addresses
            .iter()
            .all(|address| address.is_ipv4() == (kind == dns::A)));
    }
}

/// A compiled policy that the runtime lets pass is one that the proxy can read; what is closed stays closed, and who gives
/// no name gets no more than who gives any.
pub(crate) fn egress_tables(bytes: &[u8]) {
    let Ok(table) = rmp_serde::from_slice::<EgressTable>(bytes) else {
        return;
    };
    if dsec_runtime::net::check_egress(&table).is_err() {
        let _ = Policy::new(table);
        return;
    }
    let policy = Policy::new(table.clone());
    assert_eq!(policy.table, table);
    let domains = table.rules.iter().filter_map(|rule| rule.domain.as_deref());
    let names: Vec<_> = domains.map(|text| text.replace('*', "x")).collect();
    let ports = table.rules.iter().flat_map(|rule| &rule.ports);
    let ports: Vec<u16> = ports
        .map(|(first, _)| *first)
        .chain([443])
        .take(8)
        .collect();
    for address in ["10.0.0.1", "1.1.1.1", "2606:4700::1", "::ffff:10.0.0.1"] {
        let address = address.parse().expect("an address");
        for port in &ports {
            let unnamed = policy.decide(None, address, *port).allow;
            for name in &names {
                let named = policy.decide(Some(name), address, *port).allow;
                assert!(named || !unnamed, "{name} {address}:{port}");
                assert!(!(named && policy.is_protected(address)));
            }
        }
    }
}
