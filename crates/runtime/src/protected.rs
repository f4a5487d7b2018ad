//! Protected paths: what nobody in a sandbox can change, not even its root. Pure.
//!
//! A protected path is a read-only mount of itself, which nobody inside may unmount or cover. Renaming or removing a
//! mount point is refused by the kernel, but a directory above it could be renamed: so each of those is a mount point as well.

use std::collections::BTreeMap;

use dsec_proto::error::{WireError, WireResult};
use dsec_proto::keeper::Refusal;
use dsec_session::plan::{Mount, Source};

/// Most of them: each costs some mounts.
const MOST: usize = 32;
const LONGEST: usize = 1024;
/// Filesystems of the node's making, in which a mount could uncover something.
const OURS: [&str; 3] = ["proc", "sys", "dev"];

/// Whether these can be protected, as far as their names tell.
///
/// # Errors
/// `invalid_argument`.
pub fn check(paths: &[String]) -> WireResult<()> {
    let refused = |message: String| Err(WireError::invalid(message).with("field", "protected"));
    if paths.len() > MOST {
        return refused(format!("more than {MOST} protected paths"));
    }
    match paths.iter().find(|path| !is_plain(path)) {
        Some(path) => refused(format!(
            "not a path that can be protected: {:?}",
            path.chars().take(80).collect::<String>()
        )),
        None => Ok(()),
    }
}

fn is_plain(path: &str) -> bool {
    let Some(relative) = path.strip_prefix('/') else {
        return false;
    };
    let mut parts = relative.split('/');
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    path.len() <= LONGEST
        && !path.contains('\0')
        && parts.clone().all(plain)
        && parts.next().is_some_and(|first| !OURS.contains(&first))
}

/// The mounts, parents before children.
pub(crate) fn mounts(paths: &[String]) -> Vec<Mount> {
    let mut sources = BTreeMap::new();
    for path in paths {
        for parent in parents(path) {
            sources.entry(parent).or_insert(Source::Pinned);
        }
    }
    for path in paths {
        sources.insert(path.as_str(), Source::ReadOnly);
    }
    // Below a read-only directory nothing can be renamed.
    sources.retain(|path, source| {
        *source == Source::ReadOnly || !paths.iter().any(|other| is_below(path, other))
    });
    sources
        .into_iter()
        .map(|(path, source)| Mount {
            target: path.to_owned(),
            source,
            optional: false,
        })
        .collect()
}

/// The directories above a path, but the root.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/')
        .filter(|(at, _)| *at > 0)
        .map(|(at, _)| &path[..at])
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// What is wrong with a protected path, if that is why a sandbox did not begin.
pub(crate) fn refused(paths: &[String], refusal: &Refusal) -> Option<WireError> {
    let failure = refusal.failure.as_ref()?;
    if failure.step != "mount_tree" {
        return None;
    }
    let (target, _) = failure.message.split_once(": ")?;
    let path = paths
        .iter()
        .find(|path| *path == target || is_below(path, target))?;
    let why = match failure.errno {
        libc::ENOENT | libc::ENOTDIR => "it does not exist",
        libc::ELOOP => {
            "it leads through a symbolic link, which could be replaced: name the real path"
        }
        _ => return None,
    };
    Some(
        WireError::invalid(format!("{path} cannot be protected: {why}"))
            .in_phase("protected")
            .with("field", "protected"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    /// Paths that cannot be meant, and those of the node's own filesystems, are refused.
    #[test]
    fn odd_paths_are_refused() {
        let long = format!("/{}", "x".repeat(LONGEST));
        for path in [
            "",
            "/",
            "opt",
            "/opt/",
            "//opt",
            "/opt/../etc",
            "/./opt",
            "/proc/self",
            "/dev",
            "/sys/x",
            "/a\0b",
            &long,
        ] {
            assert!(check(&all(&[path])).is_err(), "{path:?}");
        }
        assert!(check(&all(&["/opt/grader", "/device", "/usr/bin/bash"])).is_ok());
        assert!(check(&vec!["/a".to_owned(); MOST + 1]).is_err());
    }

    /// Every directory above is pinned, once and before what is below; what is protected stays so.
    #[test]
    fn parents_are_pinned() {
        let mounts = mounts(&all(&["/a/b/c", "/a/x", "/a/b"]));
        let found: Vec<(&str, &Source)> = mounts
            .iter()
            .map(|mount| (mount.target.as_str(), &mount.source))
            .collect();
        let (pinned, read_only) = (&Source::Pinned, &Source::ReadOnly);
        let wanted = [
            ("/a", pinned),
            ("/a/b", read_only),
            ("/a/b/c", read_only),
            ("/a/x", read_only),
        ];
        assert_eq!(found, wanted);
        assert!(mounts.iter().all(|mount| !mount.optional));
    }

    /// Nothing is mounted where nothing is protected.
    #[test]
    fn nothing_costs_nothing() {
        assert!(mounts(&[]).is_empty());
    }
}
