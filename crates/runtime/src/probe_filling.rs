//! Whether layers can be filled while they are read: all of it is tried, on a file of a few KiB.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dsec_holder::fan::{events, Group, EVENT};

use crate::kernel::mounts::{attr, Configuring};
use crate::kernel::sys;

/// EROFS metadata of a layer of one file, `file`, of [`SIZE`] bytes that lie at the beginning of its data. As dsec's own
/// writer makes it, which `tests/unit/layering/test_probe_layer.py` holds it to: the trial needs no program.
const METADATA: &[u8] = include_bytes!("probe_layer.erofs");
const SIZE: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
const POLL_MS: i32 = 20;

/// A layer of one file in this directory is emptied, marked, mounted, and read; what the reader waits for is written, and
/// must be what it gets. Says how it was mounted.
///
/// # Errors
/// The step that failed, and why.
pub fn filling(directory: &Path) -> io::Result<String> {
    let scratch = Scratch::new(directory)?;
    let content: Vec<u8> = (0..SIZE).map(|place| (place % 251) as u8).collect();
    let layer = make(&scratch)?;
    let data = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&layer.data)?;
    data.set_len(content.len() as u64)?;
    let group = Group::new().map_err(|error| at("fanotify", &error))?;
    group
        .mark(data.as_fd())
        .map_err(|error| at("the mark", &error))?;
    let (mount, how) = match mounted(&layer, true) {
        Ok(mount) => (mount, "directio"),
        Err(_) => (
            mounted(&layer, false).map_err(|error| at("EROFS", &error))?,
            "buffered",
        ),
    };
    let read = std::thread::spawn(move || read_file(&mount));
    let asked = answer(&group, &data, &content, &read)?;
    let read = read
        .join()
        .map_err(|_| io::Error::other("the reader died"))?;
    match read.map_err(|error| at("reading", &error))? {
        bytes if bytes != content => Err(io::Error::other("the reader got other bytes")),
        _ if asked == 0 => Err(io::Error::other("the reader was not held")),
        _ => Ok(format!("tried, {how}")),
    }
}

fn at(step: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step}: {error}"))
}

/// A directory that goes with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".probe-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Layer {
    metadata: PathBuf,
    data: PathBuf,
}

fn make(scratch: &Scratch) -> io::Result<Layer> {
    let layer = Layer {
        metadata: scratch.0.join("metadata"),
        data: scratch.0.join("data"),
    };
    fs::write(&layer.metadata, METADATA)?;
    Ok(layer)
}

fn mounted(layer: &Layer, direct: bool) -> io::Result<OwnedFd> {
    let text = |path: &Path| path.display().to_string();
    let erofs = Configuring::new("erofs")?
        .set("source", &text(&layer.metadata))?
        .set("device", &text(&layer.data))?;
    let erofs = match direct {
        true => erofs.flag("directio")?,
        false => erofs,
    };
    erofs.mount(attr::RDONLY | attr::NODEV)
}

fn read_file(mount: &OwnedFd) -> io::Result<Vec<u8>> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a valid string and a borrowed descriptor.
    let file = sys::owned(libc::c_long::from(unsafe {
        libc::openat(mount.as_raw_fd(), c"file".as_ptr(), flags)
    }))?;
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Fills the data at the first event, and lets every reader go on. Returns how many events there were. A reader that is
/// left behind is let through when the group goes.
fn answer(
    group: &Group,
    data: &File,
    stored: &[u8],
    read: &JoinHandle<io::Result<Vec<u8>>>,
) -> io::Result<usize> {
    let end = Instant::now() + PATIENCE;
    let mut asked = 0;
    while !read.is_finished() {
        if Instant::now() >= end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no reader came"));
        }
        wait(group);
        let mut buffer = [0; 16 * EVENT];
        let have = group.read(&mut buffer)?;
        for event in events(&buffer[..have]) {
            // SAFETY: the kernel has opened it for whoever read the event.
            let _closed = unsafe { OwnedFd::from_raw_fd(event.fd) };
            data.write_all_at(stored, 0)?;
            asked += 1;
            group.answer(event.fd, None)?;
        }
    }
    Ok(asked)
}

fn wait(group: &Group) {
    let mut waits = libc::pollfd {
        fd: group.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry that outlives the call.
    unsafe { libc::poll(&raw mut waits, 1, POLL_MS) };
}
