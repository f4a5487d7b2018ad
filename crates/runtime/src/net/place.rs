//! A link, made and removed by calls to the kernel: they block, and belong on an object thread. Every step may be repeated.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dsec_proto::egress::EgressTable;

use super::plan;
use super::sockets::{inside, EGRESS_PORT};
use crate::config::{Config, Uplink};
use crate::kernel::netlink::{self, Block, Counts, Routed};

/// Where a sandbox's link is.
#[derive(Clone)]
pub struct Place {
    uplink: Arc<OwnedFd>,
    interface: String,
    table: String,
    /// The addresses of all links of the node.
    block: Block,
    /// How the names of the node's links begin.
    links: String,
    name: String,
    /// Its address inside.
    pub own: Ipv4Addr,
}

impl Place {
    /// That of the sandbox in a slot.
    ///
    /// # Errors
    /// When the namespace of the uplink cannot be opened.
    pub fn of(config: &Config, uplink: &Uplink, slot: u32) -> io::Result<Self> {
        let path = uplink.namespace.as_deref();
        let path = path.unwrap_or("/proc/self/ns/net".as_ref());
        let opened = File::open(path);
        let opened = opened.map_err(|error| {
            io::Error::other(format!("its uplink's {}: {error}", path.display()))
        })?;
        let links = links(config);
        Ok(Self {
            uplink: Arc::new(opened.into()),
            interface: uplink.interface.clone(),
            table: table(config),
            block: Block {
                address: own(config.range(0)).octets(),
                bits: 20,
            },
            name: format!("{links}{slot:x}"),
            links,
            own: own(config.range(slot)),
        })
    }

    /// The name of the link of the sandbox in a slot.
    #[must_use]
    pub fn name_of(&self, slot: u32) -> String {
        format!("{}{slot:x}", self.links)
    }

    /// Whether the link is there.
    ///
    /// # Errors
    /// The errno.
    pub fn exists(&self) -> io::Result<bool> {
        inside(&self.uplink, || Ok(netlink::link_exists(Some(&self.name))))
    }

    /// Removes the node's links but these, and the filter beside the uplink if none is left. Nobody may make one meanwhile.
    ///
    /// # Errors
    /// The errno.
    pub fn remove_but(&self, used: &[String]) -> io::Result<()> {
        inside(&self.uplink, || {
            let (kept, others): (Vec<_>, Vec<_>) = netlink::links_with(&self.links)?
                .into_iter()
                .partition(|name| used.contains(name));
            others
                .iter()
                .try_for_each(|name| netlink::remove_link(name))?;
            if kept.is_empty() {
                netlink::forget_block(self.block)?;
                return netlink::unguard_uplink(&self.table);
            }
            // Another uplink may have been named.
            netlink::guard_uplink(&self.table, &self.links, &self.interface, true)
        })
    }

    /// Removes the filter beside the uplink if there are no links. Nobody may make one meanwhile.
    ///
    /// # Errors
    /// The errno.
    pub fn unguard_last(&self) -> io::Result<()> {
        inside(&self.uplink, || {
            if netlink::links_with(&self.links)?.is_empty() {
                netlink::unguard_uplink(&self.table)?;
            }
            Ok(())
        })
    }
}

fn links(config: &Config) -> String {
    format!("dsec-{:x}-", config.id_block >> 16)
}

fn table(config: &Config) -> String {
    format!("dsec-{}", config.node)
}

/// The address of a link: no two ID ranges of a machine have the same.
fn own(range: u32) -> Ipv4Addr {
    let number = (range >> 16).to_be_bytes();
    let [one, two, ..] = netlink::LINKS.address;
    Ipv4Addr::new(one, two, number[2], number[3])
}

/// Makes the link, or puts these rules in place of its former ones. What these had dropped is returned.
///
/// # Errors
/// The errno, or what is wrong with the uplink.
pub fn connect(place: &Place, namespace: &OwnedFd, routed: &Routed) -> io::Result<Counts> {
    let (counts, within) = inside(namespace, || {
        let counts = netlink::take_counts()?;
        // First, so that no packet ever goes by a link without rules, nor by former ones where the uplink is out of order.
        netlink::redirect_to(EGRESS_PORT, Some(routed))?;
        Ok((counts, netlink::link_exists(None)))
    })?;
    let outside = inside(&place.uplink, || {
        hands_on(&place.interface)?;
        netlink::guard_uplink(&place.table, &place.links, &place.interface, false)?;
        Ok(netlink::link_exists(Some(&place.name)))
    })?;
    if !(outside && within) {
        // What stands in the way is half of what another runtime was about to make, or a former sandbox's.
        inside(namespace, netlink::remove_inner_link)?;
        inside(&place.uplink, || {
            netlink::remove_link(&place.name)?;
            netlink::make_link(&place.name, namespace)
        })?;
    }
    inside(namespace, || netlink::configure_inner(place.own))?;
    inside(&place.uplink, || {
        netlink::configure_outer(&place.name, place.own)
    })?;
    Ok(counts)
}

/// Whether the uplink is there and answers can come back by it.
fn hands_on(interface: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/forwarding");
    match fs::read_to_string(path) {
        Ok(said) if said.trim() == "1" => Ok(()),
        Ok(_) => Err(io::Error::other(format!(
            "net.ipv4.conf.{interface}.forwarding is off"
        ))),
        Err(_) => Err(io::Error::other(format!(
            "there is no interface {interface}"
        ))),
    }
}

/// Whether there is a link, or an end of one: the outer may be beside another uplink than is named now.
///
/// # Errors
/// The errno.
pub fn is_linked(place: Option<&Place>, namespace: &OwnedFd) -> io::Result<bool> {
    let outside = place.map_or(Ok(false), Place::exists)?;
    Ok(outside || inside(namespace, || Ok(netlink::link_exists(None)))?)
}

/// Removes the link; with `lives`, first lets nothing pass but what passes without one. What was dropped is returned.
///
/// # Errors
/// The errno.
pub fn disconnect(place: Option<&Place>, namespace: &OwnedFd, lives: bool) -> io::Result<Counts> {
    let counts = inside(namespace, || {
        let counts = netlink::take_counts()?;
        if lives {
            netlink::redirect_to(EGRESS_PORT, None)?;
        }
        Ok(counts)
    })?;
    // Either end takes the other with it.
    inside(namespace, netlink::remove_inner_link)?;
    let Some(place) = place else {
        return Ok(counts);
    };
    inside(&place.uplink, || {
        // Before and after: whoever dies in between leaves as good as nothing.
        netlink::forget_connections(place.own)?;
        netlink::remove_link(&place.name)?;
        netlink::forget_connections(place.own)
    })?;
    Ok(counts)
}

/// Makes a link between two namespaces in which nothing is, and removes it.
///
/// # Errors
/// The errno of what this kernel does not do.
pub fn trial(inner: &OwnedFd, outer: OwnedFd) -> io::Result<()> {
    let place = trial_place(outer)?;
    let routed = plan::routed(&EgressTable::nothing(), place.own, &[]);
    connect(&place, inner, &routed)?;
    disconnect(Some(&place), inner, true).map(drop)
}

/// One whose uplink is the loopback interface.
fn trial_place(outer: OwnedFd) -> io::Result<Place> {
    inside(&outer, || {
        fs::write("/proc/sys/net/ipv4/conf/lo/forwarding", "1")
    })?;
    Ok(Place {
        uplink: Arc::new(outer),
        interface: "lo".into(),
        table: "dsec-trial".into(),
        block: netlink::LINKS,
        links: "dsec-0-".into(),
        name: "dsec-0-0".into(),
        own: own(0x4000_0000),
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use dsec_proto::egress::RoutedRule;

    use super::*;
    use crate::kernel::namespaces::Network;

    const TO: &str = "192.0.2.9";

    fn table(port: u16) -> EgressTable {
        let rule = RoutedRule {
            allow: true,
            protocol: 17,
            range: Some(format!("{TO}/32")),
            ports: vec![(port, port)],
        };
        EgressTable {
            routed: vec![rule],
            ..EgressTable::nothing()
        }
    }

    /// That of a sandbox and that of an uplink; only root has any.
    fn networks() -> Option<(OwnedFd, OwnedFd)> {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            return None;
        }
        let network = || {
            Network::new()
                .expect("root makes a network namespace")
                .namespace
        };
        Some((network(), network()))
    }

    fn sent(port: u16) -> io::Result<bool> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        Ok(socket.send_to(b"x", (TO, port)).is_ok())
    }

    /// A link may be made again, over a half of one and with other rules; what no rule asks for does not leave its socket
    /// and is counted once; without the link nothing leaves, and removed twice nothing of it is left at either end.
    #[test]
    fn made_changed_and_removed() {
        let Some((inner, outer)) = networks() else {
            return;
        };
        drop(crate::net::sockets::egress(&inner).expect("is made"));
        let place = trial_place(outer).expect("has a loopback interface");
        let has_link = || {
            let links = inside(&place.uplink, || netlink::links_with(&place.links));
            let inner = inside(&inner, || Ok(netlink::link_exists(None)));
            let (links, inner) = (links.expect("is read"), inner.expect("is known"));
            assert_eq!(links.len(), usize::from(inner));
            inner
        };
        let to = |port| plan::routed(&table(port), place.own, &[]);
        let (no, one) = (Counts::default(), |unasked| Counts {
            unasked,
            ..Counts::default()
        });
        // Half of one, as a death leaves it.
        inside(&place.uplink, || netlink::make_link(&place.name, &inner)).expect("is made");
        assert_eq!(connect(&place, &inner, &to(5000)).expect("is made"), no);
        assert!(has_link());
        let both = || inside(&inner, || Ok((sent(5000)?, sent(6000)?))).expect("has a socket");
        assert_eq!(both(), (true, false));
        assert_eq!(
            connect(&place, &inner, &to(5000)).expect("is made again"),
            one(1)
        );
        assert_eq!(connect(&place, &inner, &to(6000)).expect("is changed"), no);
        assert_eq!(both(), (false, true));
        for dropped in [1, 0] {
            let counts = disconnect(Some(&place), &inner, true).expect("is removed");
            assert_eq!(counts, one(dropped));
            assert!(!has_link());
            assert_eq!(both(), (false, false));
        }
        inside(&place.uplink, || {
            netlink::unguard_uplink(&place.table)?;
            netlink::unguard_uplink(&place.table)
        })
        .expect("is removed");
    }

    /// An uplink that is not there, or from which no answer would come back, is named.
    #[test]
    fn a_wrong_uplink_is_named() {
        let Some((inner, outer)) = networks() else {
            return;
        };
        let mut place = trial_place(outer).expect("has a loopback interface");
        inside(&place.uplink, || {
            fs::write("/proc/sys/net/ipv4/conf/lo/forwarding", "0")
        })
        .expect("is set");
        let refused = |place: &Place| {
            let routed = plan::routed(&table(1), place.own, &[]);
            connect(place, &inner, &routed)
                .expect_err("is refused")
                .to_string()
        };
        assert!(refused(&place).contains("net.ipv4.conf.lo.forwarding"));
        place.interface = "other0".into();
        assert!(refused(&place).contains("other0"));
    }
}
