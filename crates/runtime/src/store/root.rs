//! The root of one sandbox: an overlay of its layers and its subvolume, all of it detached.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::Layers;
use crate::kernel::btrfs::Pool;
use crate::kernel::mounts::{self, attr, Configuring};
use dsec_fault::fault;

const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;

/// What the root is made of.
pub struct RootSpec {
    /// Names the subvolume.
    pub sandbox_id: String,
    /// Bottom first.
    pub layers: Vec<String>,
    /// Size of the subvolume.
    pub disk_bytes: u64,
    /// The subvolume that this one begins as a copy of.
    pub from: Option<String>,
    /// For /etc/hosts and /etc/hostname.
    pub hostname: String,
    /// Names of endpoints, for /etc/hosts: the Nth is at 127.77.0.N.
    pub endpoints: Vec<String>,
    /// First host ID of its range.
    pub start: u32,
    /// The range as an ID map.
    pub idmap: Arc<OwnedFd>,
}

/// A root that is ready to be entered.
pub struct Root {
    /// The overlay.
    pub overlay: OwnedFd,
    /// (path in the sandbox, file made by the node), bound over what the layers have there.
    pub files: Vec<(&'static str, OwnedFd)>,
    /// ID of the subvolume.
    pub volume: u64,
    /// Microseconds by phase.
    pub phases: Vec<(&'static str, u64)>,
}

/// Makes a root. When a step fails nothing stays.
///
/// # Errors
/// The name of the phase that failed, and why.
pub fn build(
    layers: &Layers,
    pool: &Pool,
    spec: &RootSpec,
) -> Result<Root, (&'static str, io::Error)> {
    let begun = Instant::now();
    let volume = match &spec.from {
        None => pool
            .create(&spec.sandbox_id, spec.disk_bytes)
            .map_err(|error| ("volume", error))?,
        Some(from) => pool
            .copy(from, &spec.sandbox_id, spec.disk_bytes)
            .map_err(|error| ("disk", error))?,
    };
    fault!("runtime.create.volume");
    let undo = |phase: &'static str| {
        move |error| {
            let _ = pool.delete(&spec.sandbox_id);
            (phase, error)
        }
    };
    let written = pool.path.join(&spec.sandbox_id);
    if spec.from.is_some() {
        renew(&written).map_err(undo("disk"))?;
    }
    fill(&written, spec).map_err(undo("volume"))?;
    let filled = begun.elapsed();
    let lowers = spec
        .layers
        .iter()
        .map(|digest| layers.copy(digest, &spec.idmap));
    let lowers: Vec<OwnedFd> = lowers.collect::<io::Result<_>>().map_err(undo("layers"))?;
    let laid = begun.elapsed();
    let upper = idmapped(&written, &spec.idmap).map_err(undo("overlay"))?;
    let overlay = overlay(&lowers, &upper, spec.start).map_err(undo("overlay"))?;
    let files = node_files(&upper).map_err(undo("overlay"))?;
    let micros = |duration: std::time::Duration| duration.as_micros() as u64;
    let phases = vec![
        ("volume", micros(filled)),
        ("layers", micros(laid - filled)),
        ("overlay", micros(begun.elapsed() - laid)),
    ];
    Ok(Root {
        overlay,
        files,
        volume,
        phases,
    })
}

/// Takes away what the former sandbox's own overlay and the node have put beside what was written. Among it is the mark
/// of a volatile overlay, which refuses to be mounted again: nothing was lost, since the machine has not gone down.
fn renew(volume: &Path) -> io::Result<()> {
    std::fs::remove_dir_all(volume.join("work"))?;
    std::fs::remove_dir_all(volume.join("etc"))
}

/// What the overlay writes to, and the node's own files beside it.
fn fill(volume: &Path, spec: &RootSpec) -> io::Result<()> {
    let hostname = &spec.hostname;
    for (name, mode) in [("upper", 0o755), ("work", 0o700), ("etc", 0o755)] {
        match DirBuilder::new().mode(mode).create(volume.join(name)) {
            Err(error) if name == "upper" && error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    let mut hosts = format!(
        "127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback {hostname}\n"
    );
    for (number, name) in (1..).zip(&spec.endpoints) {
        hosts += &format!("127.77.0.{number}\t{name}.dsec.internal\n");
    }
    std::fs::write(volume.join("etc/hosts"), hosts)?;
    std::fs::write(volume.join("etc/hostname"), format!("{hostname}\n"))?;
    std::fs::write(volume.join("etc/resolv.conf"), "")
}

fn idmapped(path: &Path, idmap: &OwnedFd) -> io::Result<OwnedFd> {
    let copy = mounts::clone(path)?;
    mounts::set_attributes(&copy, 0, Some(idmap))?;
    Ok(copy)
}

fn node_files(volume: &OwnedFd) -> io::Result<Vec<(&'static str, OwnedFd)>> {
    let names = [
        ("/etc/hosts", "etc/hosts"),
        ("/etc/hostname", "etc/hostname"),
        ("/etc/resolv.conf", "etc/resolv.conf"),
    ];
    let copies = names.iter().map(|(target, name)| {
        let copy = mounts::clone_at(volume.as_raw_fd(), Path::new(name), 0)?;
        mounts::set_attributes(&copy, attr::NOSUID | attr::NODEV | attr::NOEXEC, None)?;
        Ok((*target, copy))
    });
    copies.collect()
}

fn overlay(lowers: &[OwnedFd], upper: &OwnedFd, start: u32) -> io::Result<OwnedFd> {
    let _as_root_of_sandbox = FileSystemIds::new(start)?;
    let of = |fd: &OwnedFd, below: &str| format!("/proc/self/fd/{}{below}", fd.as_raw_fd());
    let mut overlay = Configuring::new("overlay")?.set("source", "dsec")?;
    for lower in lowers.iter().rev() {
        overlay = overlay.set("lowerdir+", &of(lower, ""))?;
    }
    overlay
        .set("upperdir", &of(upper, "/upper"))?
        .set("workdir", &of(upper, "/work"))?
        .set("index", "off")?
        .set("metacopy", "off")?
        .set("redirect_dir", "nofollow")?
        .flag("volatile")?
        // A device node in a layer would be the host's own device.
        .mount(attr::NODEV)
}

/// The calling thread acts on files as the root of a sandbox, until this is dropped, and keeps its capabilities: the overlay
/// remembers who made it and does everything as that.
struct FileSystemIds;

impl FileSystemIds {
    fn new(start: u32) -> io::Result<Self> {
        // SAFETY: these calls change only the calling thread and take plain numbers.
        unsafe {
            let fixed = libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
            crate::kernel::sys::check(libc::c_long::from(fixed))?;
            libc::syscall(libc::SYS_setfsgid, start);
            libc::syscall(libc::SYS_setfsuid, start);
        }
        Ok(Self)
    }
}

impl Drop for FileSystemIds {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            libc::syscall(libc::SYS_setfsuid, 0);
            libc::syscall(libc::SYS_setfsgid, 0);
        }
    }
}
