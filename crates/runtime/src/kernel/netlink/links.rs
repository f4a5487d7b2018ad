//! Routes and links. A link is a pair of virtual interfaces: the inner one in a sandbox's namespace, the outer one where
//! the uplink is. Nobody asks on it who has which address: both ends have the same hardware address.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::rules::INNER;
use super::{send, Bytes, ACK, CREATE, EXCLUSIVE, REPLACE, REQUEST, ROUTE};

const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// What stands for the other end, so that the kernel remembers one neighbour and not each address that is dialled.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);
const NO_ARP: u32 = libc::IFF_NOARP as u32;
const MULTICAST: u32 = libc::IFF_MULTICAST as u32;
const UP: u32 = libc::IFF_UP as u32;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_PEER: u16 = 1;

/// A route: where to, by what.
#[derive(Clone, Copy)]
struct Route {
    to: (Ipv4Addr, u8),
    link: u32,
    by: Option<Ipv4Addr>,
    from: Option<Ipv4Addr>,
}

/// Routes every address of both families to `lo`, in the calling thread's network namespace, and gives it `own`: programs
/// that ask for addresses of families that this machine has (AI_ADDRCONFIG) take one with 127.0.0.1 alone for one without.
/// May be repeated.
///
/// # Errors
/// The errno.
pub fn route_all_to_loopback(own: Ipv4Addr) -> io::Result<()> {
    let loopback = 1u32;
    let mut bytes = Bytes::default();
    address(&mut bytes, loopback, own, libc::RT_SCOPE_HOST);
    for family in [libc::AF_INET, libc::AF_INET6] {
        let flags = REQUEST | ACK | CREATE | REPLACE;
        bytes.message(libc::RTM_NEWROUTE, flags, 1, |bytes| {
            let scope = if family == libc::AF_INET {
                libc::RT_SCOPE_HOST
            } else {
                libc::RT_SCOPE_UNIVERSE
            };
            let table = libc::RT_TABLE_MAIN;
            bytes.0.extend([family as u8, 0, 0, 0]);
            bytes
                .0
                .extend([table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL]);
            bytes.0.extend([0; 4]);
            bytes.attribute(libc::RTA_OIF, &loopback.to_ne_bytes());
        });
    }
    send(ROUTE, &bytes.0, 3)
}

fn address(bytes: &mut Bytes, link: u32, own: Ipv4Addr, scope: u8) {
    let flags = REQUEST | ACK | CREATE | REPLACE;
    bytes.message(libc::RTM_NEWADDR, flags, 1, |bytes| {
        bytes.0.extend([libc::AF_INET as u8, 32, 0, scope]);
        bytes.0.extend(link.to_ne_bytes());
        bytes.attribute(libc::IFA_LOCAL, &own.octets());
        bytes.attribute(libc::IFA_ADDRESS, &own.octets());
    });
}

fn route(bytes: &mut Bytes, route: Route) {
    let flags = REQUEST | ACK | CREATE | REPLACE;
    bytes.message(libc::RTM_NEWROUTE, flags, 1, |bytes| {
        let scope = if route.by.is_some() {
            libc::RT_SCOPE_UNIVERSE
        } else {
            libc::RT_SCOPE_LINK
        };
        let table = libc::RT_TABLE_MAIN;
        bytes.0.extend([libc::AF_INET as u8, route.to.1, 0, 0]);
        bytes
            .0
            .extend([table, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
        bytes.0.extend([0; 4]);
        bytes.attribute(libc::RTA_DST, &route.to.0.octets());
        bytes.attribute(libc::RTA_OIF, &route.link.to_ne_bytes());
        if let Some(by) = route.by {
            bytes.attribute(libc::RTA_GATEWAY, &by.octets());
        }
        if let Some(from) = route.from {
            bytes.attribute(libc::RTA_PREFSRC, &from.octets());
        }
    });
}

/// What a message about a link begins with.
fn link(bytes: &mut Bytes, index: u32, flags: u32, change: u32) {
    bytes.0.extend([libc::AF_UNSPEC as u8, 0, 0, 0]);
    bytes.0.extend(index.to_ne_bytes());
    bytes.0.extend(flags.to_ne_bytes());
    bytes.0.extend(change.to_ne_bytes());
}

/// Makes a link whose outer end has this name and is in the calling thread's network namespace. Neither end is up yet.
///
/// # Errors
/// The errno; EEXIST when there is one.
pub fn make_link(outer: &str, inside: &OwnedFd) -> io::Result<()> {
    let mut bytes = Bytes::default();
    let flags = REQUEST | ACK | CREATE | EXCLUSIVE;
    bytes.message(libc::RTM_NEWLINK, flags, 1, |bytes| {
        link(bytes, 0, NO_ARP, NO_ARP | MULTICAST);
        bytes.text(libc::IFLA_IFNAME, outer);
        bytes.attribute(libc::IFLA_ADDRESS, &HARDWARE);
        bytes.nested(libc::IFLA_LINKINFO, |bytes| {
            bytes.text(INFO_KIND, "veth");
            bytes.nested(INFO_DATA, |bytes| {
                bytes.nested(INFO_PEER, |bytes| {
                    link(bytes, 0, NO_ARP, NO_ARP | MULTICAST);
                    bytes.text(libc::IFLA_IFNAME, INNER);
                    bytes.attribute(libc::IFLA_ADDRESS, &HARDWARE);
                    let number = inside.as_raw_fd();
                    bytes.attribute(libc::IFLA_NET_NS_FD, &number.to_ne_bytes());
                });
            });
        });
    });
    send(ROUTE, &bytes.0, 1)
}

/// Removes a link by the name of either end, if there is one.
///
/// # Errors
/// The errno.
pub fn remove_link(name: &str) -> io::Result<()> {
    let mut bytes = Bytes::default();
    bytes.message(libc::RTM_DELLINK, REQUEST | ACK, 1, |bytes| {
        link(bytes, 0, 0, 0);
        bytes.text(libc::IFLA_IFNAME, name);
    });
    match send(ROUTE, &bytes.0, 1) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        done => done,
    }
}

/// Removes a link by its inner end, if there is one.
///
/// # Errors
/// The errno.
pub fn remove_inner_link() -> io::Result<()> {
    remove_link(INNER)
}

fn index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(io::Error::other)?;
    // SAFETY: a valid string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Whether an interface of this name is in the calling thread's network namespace; `None` is the inner end of a link.
#[must_use]
pub fn link_exists(name: Option<&str>) -> bool {
    index(name.unwrap_or(INNER)).is_ok()
}

/// The interfaces there whose names begin so.
///
/// # Errors
/// The errno.
pub fn links_with(begin: &str) -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = table.lines().filter_map(|line| line.split_once(':'));
    Ok(names
        .map(|(name, _)| name.trim().to_owned())
        .filter(|name| name.starts_with(begin))
        .collect())
}

/// A setting of an interface. Of a family that this kernel does not have there is none.
fn set(family: &str, name: &str, key: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/{family}/conf/{name}/{key}");
    match fs::write(path, value) {
        Err(error) if family == "ipv6" && error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn up(bytes: &mut Bytes, index: u32) {
    bytes.message(libc::RTM_NEWLINK, REQUEST | ACK, 1, |bytes| {
        link(bytes, index, UP | NO_ARP, UP | NO_ARP);
    });
}

/// Makes the inner end ready: `own` is its address, and every address is routed by it. What it may carry is for the rules
/// to say, which must be there before. Echo requests need a word of the namespace. May be repeated.
///
/// # Errors
/// The errno.
pub fn configure_inner(own: Ipv4Addr) -> io::Result<()> {
    set("ipv6", INNER, "disable_ipv6", "1")?;
    set("ipv4", INNER, "forwarding", "0")?;
    set("ipv4", INNER, "rp_filter", "0")?;
    // To this namespace all other addresses are its own: those that answer, too.
    set("ipv4", INNER, "accept_local", "1")?;
    fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")?;
    let link = index(INNER)?;
    let mut bytes = Bytes::default();
    address(&mut bytes, link, own, libc::RT_SCOPE_UNIVERSE);
    up(&mut bytes, link);
    let (by, from) = (None, Some(own));
    let to = (BEYOND, 32);
    route(&mut bytes, Route { to, link, by, from });
    // More than the route of everything to `lo`, which stays for what this one does not take.
    for half in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(128, 0, 0, 0)] {
        let (to, by) = ((half, 1), Some(BEYOND));
        route(&mut bytes, Route { to, link, by, from });
    }
    send(ROUTE, &bytes.0, 5)
}

/// Makes the outer end ready, to which `own` is routed. What comes from it with another source is dropped by the kernel.
/// May be repeated.
///
/// # Errors
/// The errno.
pub fn configure_outer(name: &str, own: Ipv4Addr) -> io::Result<()> {
    set("ipv6", name, "disable_ipv6", "1")?;
    set("ipv4", name, "rp_filter", "1")?;
    set("ipv4", name, "send_redirects", "0")?;
    set("ipv4", name, "forwarding", "1")?;
    let link = index(name)?;
    let mut bytes = Bytes::default();
    up(&mut bytes, link);
    let (to, by, from) = ((own, 32), None, None);
    route(&mut bytes, Route { to, link, by, from });
    send(ROUTE, &bytes.0, 2)
}
