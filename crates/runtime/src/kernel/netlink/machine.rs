//! The addresses of a network namespace.

use std::io;
use std::net::Ipv4Addr;
use std::ptr;

use crate::kernel::sys::check;

/// Those of IPv4 that the calling thread's namespace has, in order.
///
/// # Errors
/// The errno.
pub fn own_addresses() -> io::Result<Vec<Ipv4Addr>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: a place for the list.
    check(unsafe { libc::getifaddrs(&raw mut first) }.into())?;
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: all of the list stays until it is freed.
        let each = unsafe { &*next };
        next = each.ifa_next;
        // SAFETY: an address, if there is one, begins with its family.
        let family = unsafe { each.ifa_addr.as_ref() }.map(|address| address.sa_family);
        if family == Some(libc::AF_INET as libc::sa_family_t) {
            // SAFETY: one of this family is as long as that, and aligned as all are.
            let address = unsafe { ptr::read_unaligned(each.ifa_addr.cast::<libc::sockaddr_in>()) };
            found.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)));
        }
    }
    // SAFETY: what was given, once.
    unsafe { libc::freeifaddrs(first) };
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_them() {
        let found = own_addresses().expect("the kernel tells them");
        assert!(found.contains(&Ipv4Addr::LOCALHOST), "{found:?}");
    }
}
