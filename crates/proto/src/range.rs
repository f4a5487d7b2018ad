//! Address ranges. Pure.

use std::net::IpAddr;

/// Addresses of one family that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    address: IpAddr,
    bits: u8,
}

impl Range {
    /// `ADDRESS/BITS`, without bits beyond those; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        if bits.len() > 3 || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let bits: u8 = bits.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let range = Self { address, bits };
        (bits <= most && masked(address, bits) == value(address)).then_some(range)
    }

    /// Its first address and how many bits are the same, if it is of IPv4.
    #[must_use]
    pub fn four(&self) -> Option<([u8; 4], u8)> {
        match self.address {
            IpAddr::V4(address) => Some((address.octets(), self.bits)),
            IpAddr::V6(_) => None,
        }
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && masked(address, self.bits) == value(self.address)
    }
}

fn value(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn masked(address: IpAddr, bits: u8) -> u128 {
    let width = if address.is_ipv4() { 32 } else { 128 };
    let beyond = u32::from(width - bits.min(width));
    match value(address).checked_shr(beyond) {
        Some(kept) => kept << beyond,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range has its first and last address and not those beside, and nothing of the other family.
    #[test]
    fn contained() {
        let cases = [
            ("10.0.0.0/8", "10.0.0.0", true),
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::", false),
            ("::/0", "ffff::1", true),
            ("::/3", "1fff:ffff::", true),
            ("::/3", "2000::", false),
            ("192.0.2.7/32", "192.0.2.7", true),
            ("192.0.2.7/32", "192.0.2.6", false),
            ("::ffff:0:0/96", "::ffff:10.0.0.1", true),
        ];
        for (range, address, within) in cases {
            let parsed = Range::parse(range).expect("is a range");
            let address = address.parse().expect("is an address");
            assert_eq!(parsed.contains(address), within, "{range} {address}");
        }
    }

    /// What could be read in two ways is no range.
    #[test]
    fn refused() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/+8",
            "/8",
            "a/8",
        ] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
    }
}
