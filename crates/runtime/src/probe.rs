//! Which kernel features are there, found by trying them where that is cheap.

use std::io;
use std::path::Path;

use dsec_proto::runtime::Feature;

use crate::groups::{Layout, Mode};
use crate::kernel::mounts::{self, attr, Configuring};
use crate::kernel::{lsm, namespaces, notify, sys};
use crate::net;
use crate::probe_filling::filling;
use crate::profiles::nesting;

/// An ID range that no node uses, for trials.
const TRIAL_RANGE: u32 = 0x3fff_0000;

/// All features, in the order of the documentation's table. `layers`: a directory of the file system that layers lie on,
/// where their filling is tried.
#[must_use]
pub fn features(layers: Option<&Path>) -> Vec<Feature> {
    vec![
        groups(),
        feature(
            "id-mapped mounts",
            idmapped(),
            "sandboxes cannot run",
            "Linux 5.19 or later",
        ),
        feature(
            "overlay on detached mounts",
            overlay(),
            "sandboxes cannot run",
            "Linux 6.15 or later",
        ),
        feature(
            "network namespaces",
            network(),
            "sandboxes cannot run",
            "run as root",
        ),
        feature(
            "links and packet filters",
            links(),
            "networks with rules for udp, icmp or any are refused",
            "Linux with VETH, NF_TABLES_INET, NFT_CT, NFT_CONNLIMIT and NFT_MASQ",
        ),
        feature(
            "EROFS from files",
            since("erofs", 6, 12),
            "layers cannot be mounted",
            "Linux 6.12 or later with EROFS",
        ),
        feature(
            "btrfs simple quota",
            since("btrfs", 6, 7),
            "disks cannot be limited",
            "Linux 6.7 or later with btrfs",
        ),
        feature(
            "pre-content events",
            layers.map_or_else(pre_content, filling),
            "layers are not filled on demand",
            "Linux 6.14 or later with fanotify's access permissions",
        ),
        feature(
            "mkfs.btrfs",
            program("mkfs.btrfs"),
            "no pool can be made",
            "install btrfs-progs",
        ),
        feature(
            "seccomp filter",
            filter(),
            "sandboxes cannot run",
            "an x86_64 or aarch64 kernel with seccomp",
        ),
        feature(
            "nested user namespaces",
            nesting().map(|()| "by its settings".to_owned()),
            "no sandbox has the profile nested",
            "allow unprivileged user namespaces",
        ),
        feature(
            "seccomp listeners",
            notify::can_listen().map(|()| "tried".to_owned()),
            "refused system calls are no events",
            "do not run dsec below a seccomp filter that has a listener",
        ),
        feature(
            "BPF LSM",
            lsm::probe(),
            "protected paths are held by read-only mounts alone, refused writes to them are no events",
            "nothing has to be done",
        ),
        descriptors(),
    ]
}

fn feature(name: &str, tried: io::Result<String>, lost: &str, remedy: &str) -> Feature {
    let (present, detail) = match tried {
        Ok(detail) => (true, detail),
        Err(error) => (false, error.to_string()),
    };
    Feature {
        name: name.into(),
        present,
        detail,
        lost: lost.into(),
        remedy: remedy.into(),
    }
}

fn groups() -> Feature {
    let found = Layout::find("dsec").map(|layout| match layout.mode {
        Mode::V2 => "v2".to_owned(),
        Mode::Hybrid => "hybrid: v1 controllers, v2 tree".to_owned(),
        Mode::V1 => "v1".to_owned(),
    });
    feature(
        "cgroups",
        found,
        "sandboxes cannot be limited",
        "mount the cgroup v2 tree or the v1 controllers",
    )
}

/// On a thread of its own, in case the trial changes namespaces.
fn apart<T: Send + 'static>(
    trial: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    std::thread::spawn(trial)
        .join()
        .map_err(|_| io::Error::other("the trial died"))?
}

fn idmapped() -> io::Result<String> {
    let map = namespaces::id_map(TRIAL_RANGE, 65_536)?;
    let mount = Configuring::new("tmpfs")?.mount(0)?;
    mounts::set_attributes(&mount, 0, Some(&map))?;
    Ok("tried".into())
}

fn overlay() -> io::Result<String> {
    apart(|| {
        use std::os::fd::AsRawFd;
        let tmpfs = || Configuring::new("tmpfs")?.mount(attr::NODEV);
        let (lower, upper) = (tmpfs()?, tmpfs()?);
        for name in [c"upper", c"work"] {
            // SAFETY: a valid string and a borrowed descriptor.
            sys::check(libc::c_long::from(unsafe {
                libc::mkdirat(upper.as_raw_fd(), name.as_ptr(), 0o755)
            }))?;
        }
        let of = |fd: &std::os::fd::OwnedFd, below: &str| {
            format!("/proc/self/fd/{}{below}", fd.as_raw_fd())
        };
        Configuring::new("overlay")?
            .set("lowerdir+", &of(&lower, ""))?
            .set("upperdir", &of(&upper, "/upper"))?
            .set("workdir", &of(&upper, "/work"))?
            .flag("volatile")?
            .mount(attr::NODEV)?;
        Ok("tried".to_owned())
    })
}

fn links() -> io::Result<String> {
    apart(|| {
        let (inner, outer) = (namespaces::Network::new()?, namespaces::Network::new()?);
        net::trial(&inner.namespace, outer.namespace)?;
        Ok("tried".into())
    })
}

fn network() -> io::Result<String> {
    apart(|| namespaces::Network::new().map(|_| "tried".to_owned()))
}

fn filter() -> io::Result<String> {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads four bytes at a valid address.
    sys::check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    })?;
    Ok("tried".to_owned())
}

fn pre_content() -> io::Result<String> {
    let files = (libc::O_RDONLY | libc::O_CLOEXEC) as u32;
    // SAFETY: plain numbers; the new descriptor is closed with its owner.
    sys::owned(libc::c_long::from(unsafe {
        libc::fanotify_init(libc::FAN_CLASS_PRE_CONTENT | libc::FAN_CLOEXEC, files)
    }))?;
    Ok("tried".to_owned())
}

fn since(filesystem: &str, major: u32, minor: u32) -> io::Result<String> {
    let known = std::fs::read_to_string("/proc/filesystems")?;
    if !filesystem.is_empty()
        && !known
            .lines()
            .any(|line| line.split_whitespace().last() == Some(filesystem))
    {
        return Err(io::Error::other(format!(
            "the kernel has no {filesystem} (or its module is not loaded)"
        )));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse::<u32>().ok());
    let have = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if have >= (major, minor) {
        Ok(format!("Linux {}", release.trim()))
    } else {
        Err(io::Error::other(format!(
            "Linux {} is older than {major}.{minor}",
            release.trim()
        )))
    }
}

fn program(name: &str) -> io::Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut found = path
        .split(':')
        .map(|directory| std::path::Path::new(directory).join(name));
    found
        .find(|path| path.is_file())
        .map(|path| path.display().to_string())
        .ok_or_else(|| io::Error::other(format!("{name} is not in PATH")))
}

fn descriptors() -> Feature {
    let (_, hard) = sys::descriptor_limit();
    let enough = if hard >= 20_000 {
        Ok(hard.to_string())
    } else {
        Err(io::Error::other(hard.to_string()))
    };
    feature(
        "descriptors",
        enough,
        "fewer sandboxes and execs at once",
        "raise the hard limit of open files (LimitNOFILE)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is far too old is told as such, the running one is new enough for version 3.
    #[test]
    fn releases_are_compared() {
        assert!(since("", 3, 0).is_ok());
        assert!(since("", 1000, 0).is_err());
        assert!(since("no-such-filesystem", 3, 0).is_err());
    }
}
