//! What the holder has left once it holds its events: root's files, and the calls by which it hears, holds and answers.
//! It hears the fetcher, which reads what strangers have written.

use std::io;

use dsec_session::confined::{self, Calls, LookedAt, Test, COMMON, COMMON_LOOKED_AT, SOCKETS};
use dsec_session::unprivileged::give_up_capabilities;
use libc::c_long;

/// Marks, layers' files, the memory that it shares with the fetcher, numbers of descriptors.
const HOLDING: &[c_long] = &[
    libc::SYS_fanotify_mark,
    libc::SYS_pread64,
    libc::SYS_ftruncate,
    libc::SYS_unlinkat,
    libc::SYS_memfd_create,
    libc::SYS_dup3,
];

/// The fetcher's and the keeper's sockets.
const LOCAL: &[LookedAt] = &[
    (libc::SYS_socket, 0, Test::OneOf(&[libc::AF_UNIX as u32])),
    (
        libc::SYS_socketpair,
        0,
        Test::OneOf(&[libc::AF_UNIX as u32]),
    ),
];

static CALLS: Calls = Calls {
    any: &[COMMON, SOCKETS, HOLDING],
    looked_at: &[COMMON_LOOKED_AT, LOCAL],
};

/// From now on this process has no capabilities and these calls only. `faults`: and those of fault points.
///
/// A group of events takes CAP_SYS_ADMIN to make, and none to mark files and answer with.
///
/// # Errors
/// The errno.
pub fn confine(faults: bool) -> io::Result<()> {
    give_up_capabilities()?;
    confined::confine(&CALLS, faults)
}
