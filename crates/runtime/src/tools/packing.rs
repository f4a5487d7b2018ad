//! The tool that makes a layer of a snapshot: it reads files that a sandbox has written, so it gets them by one descriptor, read
//! only, and nothing else of the pool; and of root's capabilities only those without which it could not read them.

use std::io;
use std::os::fd::OwnedFd;

use dsec_proto::error::{WireError, WireResult};
use dsec_session::plan::Step;

use super::templates::SNAPSHOT;
use crate::check;
use crate::kernel::mounts::{self, attr};
use crate::node::Node;

/// Its number in the tool.
pub const DESCRIPTOR: i32 = 3;
const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
/// Overlay's marks, `trusted.*`, are shown to nobody else.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The snapshot that a command line names.
#[must_use]
pub fn named<'a>(argv: &[&'a str]) -> Option<&'a str> {
    let at = argv.iter().position(|word| *word == SNAPSHOT)?;
    argv.get(at + 1).copied()
}

/// Whether it may be packed.
///
/// # Errors
/// `invalid_argument`, `not_found`.
pub fn check_kept(node: &Node, snapshot: &str) -> WireResult<()> {
    check::snapshot_id(snapshot, &node.config.node)?;
    if node.snapshots.borrow().contains_key(snapshot) {
        return Ok(());
    }
    Err(WireError::not_found(format!("there is no snapshot {snapshot}")).in_phase("snapshot"))
}

/// What the sandbox had written, as a mount of its own that nobody can write by.
///
/// # Errors
/// `node_error`.
pub async fn written(node: &Node, snapshot: &str) -> WireResult<OwnedFd> {
    let upper = node.pool.path.join(snapshot).join("upper");
    let open = move || -> io::Result<OwnedFd> {
        let mount = mounts::clone(&upper)?;
        let shut = attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC;
        mounts::set_attributes(&mount, shut, None)?;
        Ok(mount)
    };
    let opened = node.objects.run(open).await;
    opened.map_err(|error| WireError::node("pack", format!("the snapshot: {error}")))
}

/// What it may not do, for good.
#[must_use]
pub fn steps() -> [Step; 2] {
    let keep = CAP_DAC_READ_SEARCH | CAP_SYS_ADMIN;
    [Step::Caps { keep }, Step::NoNewPrivs]
}
