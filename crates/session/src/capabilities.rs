//! Capability sets of the forked child.

use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

/// Numbers the kernel may know; it answers EINVAL past its last one.
const NUMBERS: u32 = 64;

/// Drop every capability outside `keep` from the bounding set.
pub(crate) fn bound(keep: u64) -> Result<(), Errno> {
    for number in (0..NUMBERS).filter(|number| keep & (1 << number) == 0) {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << number,
        )) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Hold exactly `bits` (as far as they are permitted now), inherit none.
pub(crate) fn hold(bits: u64) -> Result<(), Errno> {
    let now = rustix::thread::capabilities(None)?;
    let kept = now
        .permitted
        .intersection(CapabilitySet::from_bits_retain(bits));
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )
}

/// Pass nothing on by inheritance, keep what is held.
pub(crate) fn inherit_none() -> Result<(), Errno> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::clear_ambient_capability_set()
}

/// Keep all capabilities over the changes of IDs that follow (`true`), or not (`false`).
pub(crate) fn survive_id_changes(survive: bool) -> Result<(), Errno> {
    rustix::thread::set_capabilities_secure_bits(if survive {
        CapabilitiesSecureBits::NO_SETUID_FIXUP
    } else {
        CapabilitiesSecureBits::empty()
    })
}
