//! What a sandbox's endpoints have done: a file in memory of a fixed size, which the proxy writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dsec_proto::net::{EndpointCount, LEDGER_BYTES};

use crate::kernel::sys;

/// One for so many endpoints, which have done nothing yet. The proxy can change what stands in it, not its size.
///
/// # Errors
/// The errno.
pub fn make(endpoints: usize) -> io::Result<OwnedFd> {
    sized("endpoints", (endpoints * LEDGER_BYTES) as u64)
}

/// A file in memory whose size nobody can change.
///
/// # Errors
/// The errno.
pub fn sized(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let ledger = File::from(sys::memory(name)?);
    ledger.set_len(bytes)?;
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of ours and plain numbers.
    let sealed = unsafe { libc::fcntl(ledger.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    sys::check(libc::c_long::from(sealed))?;
    Ok(ledger.into())
}

/// What stands in it.
///
/// # Errors
/// The errno.
pub fn read(ledger: &OwnedFd, endpoints: usize) -> io::Result<Vec<EndpointCount>> {
    let ledger = File::from(ledger.try_clone()?);
    (0..endpoints)
        .map(|index| {
            let mut bytes = [0; LEDGER_BYTES];
            ledger.read_exact_at(&mut bytes, (index * LEDGER_BYTES) as u64)?;
            Ok(EndpointCount::from_ledger(&bytes))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read, each endpoint in its place, and nobody can make it longer.
    #[test]
    fn written_and_read() {
        let ledger = make(2).expect("is made");
        let count = EndpointCount {
            requests: 3,
            ..EndpointCount::default()
        };
        let writer = File::from(ledger.try_clone().expect("is copied"));
        let second = LEDGER_BYTES as u64;
        writer
            .write_all_at(&count.to_ledger(), second)
            .expect("is written");
        assert!(writer.write_all_at(&[1], 2 * second).is_err());
        let read = read(&ledger, 2).expect("is read");
        assert_eq!(read, [EndpointCount::default(), count]);
    }
}
