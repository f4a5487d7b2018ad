//! Waiting for descriptors: the ones that tokio has no type for, and a cgroup that becomes empty.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Has tokio watch a descriptor.
///
/// # Errors
/// EPERM for what cannot be polled.
pub fn watch<T: AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the owners of this crate (OwnedFd, File, Rc of them) keep one descriptor open for as long as they live, and
    // AsyncFd keeps its owner.
    let watched = unsafe { AsyncFd::register_with_interest(owner, interest) };
    watched.map_err(Into::into)
}

/// Returns when the v2 group (and all below) has no process left.
///
/// # Errors
/// When the file cannot be read or watched.
pub async fn until_empty(group: &Path) -> io::Result<()> {
    until_says(group, "populated 0").await
}

/// Returns when every process of the v2 group stands still.
///
/// # Errors
/// When the file cannot be read or watched.
pub async fn until_frozen(group: &Path) -> io::Result<()> {
    until_says(group, "frozen 1").await
}

async fn until_says(group: &Path, wanted: &str) -> io::Result<()> {
    let watched = watch(File::open(group.join("cgroup.events"))?, Interest::PRIORITY)?;
    loop {
        // Reading arms the notification, so that a change after this look is seen.
        if says(watched.get_ref(), wanted)? {
            return Ok(());
        }
        watched.ready(Interest::PRIORITY).await?.clear_ready();
    }
}

fn says(mut file: &File, wanted: &str) -> io::Result<bool> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line == wanted))
}
