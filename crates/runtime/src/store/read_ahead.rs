//! How far the kernel reads ahead in a layer: 128 KiB are one read of the disk at a time, with nobody reading meanwhile.

use std::io;
use std::path::Path;

/// Where each file system that is backed by no device of its own has a directory, `erofs-N` with N always growing.
const CLASS: &str = "/sys/class/bdi";
const KIB: &str = "512";

fn number(name: &str) -> Option<u64> {
    name.strip_prefix("erofs-")?.parse().ok()
}

fn numbers(class: &Path) -> io::Result<impl Iterator<Item = u64>> {
    let names = std::fs::read_dir(class)?.flatten();
    Ok(names.filter_map(|entry| number(entry.file_name().to_str()?)))
}

/// Mounts an EROFS file system, and has the kernel read further ahead in it. What somebody else mounts at the same
/// moment is set too: nothing tells whose it is. Where it cannot be set the layer is read as it is.
///
/// # Errors
/// What mounting it says.
pub fn mounted_with<T>(mount: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let class = Path::new(CLASS);
    let before = numbers(class).map(|all| all.max().unwrap_or_default());
    let mounted = mount()?;
    let set = || {
        let before = before?;
        for new in numbers(class)?.filter(|number| *number > before) {
            std::fs::write(class.join(format!("erofs-{new}/read_ahead_kb")), KIB)?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = set() {
        tracing::warn!("layers are read ahead by 128 KiB only: {error}");
    }
    Ok(mounted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what EROFS has mounted counts.
    #[test]
    fn others_are_left_alone() {
        let names = [
            "erofs-7",
            "btrfs-9",
            "7:3",
            "erofs-",
            "erofs-x",
            "erofs-19753",
        ];
        let found: Vec<u64> = names.into_iter().filter_map(number).collect();
        assert_eq!(found, [7, 19753]);
    }
}
