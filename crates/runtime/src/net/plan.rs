//! From a checked table to the rules of a link. Pure.

use std::net::Ipv4Addr;

use dsec_proto::egress::{EgressTable, RoutedRule};
use dsec_proto::range::Range;

use crate::kernel::netlink::{Asked, Block, Routed};

const ICMP: u8 = libc::IPPROTO_ICMP as u8;
/// What no router hands on, whatever an operator opens: this machine, link-local addresses (metadata among them), what
/// Azure has beside those, the links themselves, multicast.
const NEVER: [([u8; 4], u8); 7] = [
    ([0, 0, 0, 0], 8),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([168, 63, 129, 16], 32),
    ([198, 18, 0, 0], 15),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// The rules of a link with this address. Nothing reaches the machine's own ones, wherever the uplink lies; of these are
/// named which no other rule holds already.
#[must_use]
pub fn routed(table: &EgressTable, own: Ipv4Addr, machine: &[Ipv4Addr]) -> Routed {
    let mut never = NEVER
        .map(|(address, bits)| Block { address, bits })
        .to_vec();
    let (closed, opened) = (blocks(&table.closed), blocks(&table.opened));
    for address in machine {
        let among = |blocks: &[Block]| blocks.iter().any(|block| block.holds(*address));
        if !among(&never) && (!among(&closed) || among(&opened)) {
            never.push(Block {
                address: address.octets(),
                bits: 32,
            });
        }
    }
    Routed {
        own,
        most: table.max_connections,
        asked: table.routed.iter().flat_map(asked).collect(),
        closed,
        opened,
        never,
    }
}

/// Whether some of it is for echo requests.
#[must_use]
pub fn asks_for_echoes(table: &EgressTable) -> bool {
    let echoes = |rule: &RoutedRule| rule.allow && rule.protocol == ICMP;
    table.routed.iter().any(echoes)
}

fn asked(rule: &RoutedRule) -> Vec<Asked> {
    let asked = Asked {
        allow: rule.allow,
        protocol: (rule.protocol != 0).then_some(rule.protocol),
        block: rule.range.as_deref().and_then(block),
        ports: None,
    };
    // A range that is none was refused by the checks; it never widens a rule here.
    if rule.range.is_some() && asked.block.is_none() {
        return Vec::new();
    }
    if rule.ports.is_empty() {
        return vec![asked];
    }
    let of = |ports| Asked {
        ports: Some(ports),
        ..asked
    };
    rule.ports.iter().copied().map(of).collect()
}

fn blocks(ranges: &[String]) -> Vec<Block> {
    ranges.iter().filter_map(|text| block(text)).collect()
}

fn block(text: &str) -> Option<Block> {
    let (address, bits) = Range::parse(text)?.four()?;
    Some(Block { address, bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each port is a rule, what is empty matches all, ranges of IPv6 are nobody's, and nothing that cannot be read makes a
    /// rule wider.
    #[test]
    fn rules() {
        let rule = |protocol, range: Option<&str>, ports: &[(u16, u16)]| RoutedRule {
            allow: true,
            protocol,
            range: range.map(str::to_owned),
            ports: ports.to_vec(),
        };
        let mut table = EgressTable::nothing();
        table.closed = vec!["10.0.0.0/8".into(), "::/3".into()];
        table.routed = vec![
            rule(17, Some("192.0.2.0/25"), &[(53, 53), (100, 200)]),
            rule(0, None, &[]),
            rule(17, Some("x"), &[]),
            rule(17, Some("2001:db8::/32"), &[]),
        ];
        let found = routed(&table, Ipv4Addr::new(198, 18, 0, 1), &[]);
        let block = Some(Block {
            address: [192, 0, 2, 0],
            bits: 25,
        });
        let udp = |ports| Asked {
            allow: true,
            protocol: Some(17),
            block,
            ports: Some(ports),
        };
        let all = Asked {
            allow: true,
            protocol: None,
            block: None,
            ports: None,
        };
        assert_eq!(found.asked, [udp((53, 53)), udp((100, 200)), all]);
        assert_eq!((found.closed.len(), found.most), (1, 1));
        assert_eq!(found.never.len(), NEVER.len());
        assert!(!asks_for_echoes(&table));
        table.routed.push(rule(1, None, &[]));
        assert!(asks_for_echoes(&table));
    }

    /// The machine's own addresses are reached by no link, those in what its operator has opened too.
    #[test]
    fn machine() {
        let mut table = EgressTable::nothing();
        table.closed = vec!["10.0.0.0/8".into()];
        table.opened = vec!["10.9.0.0/16".into()];
        let own = Ipv4Addr::new(198, 18, 0, 1);
        let machine = ["127.0.0.1", "10.1.1.1", "10.9.1.1", "203.0.113.7"]
            .map(|text| text.parse().expect("an address"));
        let found = routed(&table, own, &machine).never;
        let added: Vec<_> = found[NEVER.len()..]
            .iter()
            .map(|each| (each.address, each.bits))
            .collect();
        assert_eq!(added, [([10, 9, 1, 1], 32), ([203, 0, 113, 7], 32)]);
        assert!(Block {
            address: [0; 4],
            bits: 0
        }
        .holds(own));
    }
}
