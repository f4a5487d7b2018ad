//! Changes below a path, by inotify in the sandbox's own mount namespace.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use crate::failing::{shown, Doing, Fault};
use crate::file_calls::{failed, is, plain};
use crate::file_target::{is_proc, parts, refuse_proc};
use crate::in_root;
use crate::pipe_io::Records;
use crate::plan::{FileEvent, FileReport};

/// Directories that one watch follows at most.
const MOST_DIRECTORIES: usize = 8192;
const MOST_DEPTH: usize = 256;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
const WANTED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// An inotify instance and what its numbers mean.
pub(crate) struct Watch {
    inotify: OwnedFd,
    /// Watch number → path of the directory, relative to the watched one (empty: itself).
    paths: BTreeMap<i32, Vec<u8>>,
    top: i32,
    root: OwnedFd,
    recursive: bool,
    /// A name that went away and may come back under another: its number, path, and whether it is a directory.
    moving: Option<(u32, Vec<u8>, bool)>,
    over: bool,
}

/// What is done with each path found, and whether it is a directory.
type Found<'a> = dyn FnMut(&[u8], bool) -> Result<(), Errno> + 'a;

/// One event as the kernel told it.
struct Told {
    watch: i32,
    mask: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

impl Watch {
    /// Begin to watch. The path is entered first, so that what is watched is what was checked.
    pub(crate) fn begin(path: &[u8], recursive: bool) -> Result<Self, Fault> {
        let name = shown(path);
        let doing = || format!("watch {name}");
        let found = in_root::open_here(path, OFlags::PATH).doing(doing)?;
        refuse_proc(&found, &name)?;
        let stat = fs::fstat(&found).doing(doing)?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).doing(doing)?;
        let (root, last) = if is(&stat, FileType::Directory) {
            let root =
                in_root::open_here(path, DIRECTORY.difference(OFlags::NOFOLLOW)).doing(doing)?;
            (root, b".".to_vec())
        } else {
            let (parent, last) = parts(path)?;
            let root =
                in_root::open_here(parent, DIRECTORY.difference(OFlags::NOFOLLOW)).doing(doing)?;
            (root, last.to_vec())
        };
        rustix::process::fchdir(&root).doing(doing)?;
        let top = inotify::add_watch(&inotify, last.as_slice(), WANTED).doing(doing)?;
        let mut watch = Self {
            inotify,
            paths: BTreeMap::from([(top, Vec::new())]),
            top,
            root,
            recursive: recursive && is(&stat, FileType::Directory),
            moving: None,
            over: false,
        };
        if watch.recursive {
            watch.follow(b"", &mut |_, _| Ok(())).doing(doing)?;
        }
        Ok(watch)
    }

    /// Tell of changes until the reader or what is watched has gone.
    pub(crate) fn run(&mut self, output: &impl AsFd) -> FileReport {
        let mut records = Records::new(output);
        let outcome = self.tell_all(&mut records, output);
        let mut report =
            outcome.map_or_else(|errno| failed(plain(errno)), |()| FileReport::default());
        report.entries = records.count;
        report
    }

    fn tell_all(&mut self, records: &mut Records<'_>, output: &impl AsFd) -> Result<(), Errno> {
        while !self.over {
            let told = self.read()?;
            if told.is_empty() {
                self.settle(records)?;
                records.flush()?;
                if !self.wait(output) {
                    return Ok(());
                }
                continue;
            }
            for one in told {
                self.tell(one, records)?;
            }
        }
        records.flush()
    }

    /// Wait for news; false when nobody reads any more.
    fn wait(&self, output: &impl AsFd) -> bool {
        let mut either = [
            PollFd::new(&self.inotify, PollFlags::IN),
            PollFd::new(output, PollFlags::empty()),
        ];
        let _interrupted = rustix::event::poll(&mut either, None);
        !either[1]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
    }

    fn read(&self) -> Result<Vec<Told>, Errno> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut told = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => told.push(Told {
                    watch: event.wd(),
                    mask: event.events(),
                    cookie: event.cookie(),
                    name: event
                        .file_name()
                        .map_or_else(Vec::new, |name| name.to_bytes().to_vec()),
                }),
                Err(Errno::AGAIN) => return Ok(told),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if reader.is_buffer_empty() {
                return Ok(told);
            }
        }
    }

    fn tell(&mut self, told: Told, records: &mut Records<'_>) -> Result<(), Errno> {
        let directory = told.mask.contains(ReadFlags::ISDIR);
        if told.mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.settle(records)?;
            return self.overflow(records);
        }
        let Some(path) = self.path_of(&told) else {
            return Ok(());
        };
        if self.nameless(&told, &path) {
            return Ok(());
        }
        if told.mask.contains(ReadFlags::MOVED_TO) {
            return self.moved_to(told.cookie, path, directory, records);
        }
        self.settle(records)?;
        let mask = told.mask;
        if mask.contains(ReadFlags::MOVED_FROM) {
            self.moving = Some((told.cookie, path, directory));
            return Ok(());
        }
        if mask.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            if told.watch != self.top {
                return Ok(()); // its parent says so too
            }
            self.over = true;
            return records.add(&event("removed", path, directory));
        }
        if mask.contains(ReadFlags::IGNORED) {
            self.paths.remove(&told.watch);
            self.over |= told.watch == self.top;
            return Ok(());
        }
        let kind = if mask.contains(ReadFlags::CREATE) {
            "created"
        } else if mask.contains(ReadFlags::DELETE) {
            "removed"
        } else if mask.contains(ReadFlags::MODIFY) {
            "modified"
        } else if mask.contains(ReadFlags::CLOSE_WRITE) {
            "closed"
        } else if mask.contains(ReadFlags::ATTRIB) {
            "attributes"
        } else {
            return Ok(());
        };
        records.add(&event(kind, path.clone(), directory))?;
        if kind == "created" && directory {
            self.follow_new(&path, records)?;
        }
        Ok(())
    }

    /// A file without a name (O_TMPFILE) is told of as `#NUMBER`, a name that is not there.
    fn nameless(&self, told: &Told, path: &[u8]) -> bool {
        let made = ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE | ReadFlags::ATTRIB;
        told.name.starts_with(b"#")
            && told.mask.intersects(made)
            && in_root::open_beneath(&self.root, path, OFlags::PATH | OFlags::NOFOLLOW).is_err()
    }

    fn path_of(&self, told: &Told) -> Option<Vec<u8>> {
        let mut path = self.paths.get(&told.watch)?.clone();
        if !told.name.is_empty() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&told.name);
        }
        Some(path)
    }

    fn moved_to(
        &mut self,
        cookie: u32,
        path: Vec<u8>,
        directory: bool,
        records: &mut Records<'_>,
    ) -> Result<(), Errno> {
        if let Some((_, from, _)) = self.moving.take_if(|(number, ..)| *number == cookie) {
            self.rename_paths(&from, Some(&path));
            let mut moved = event("moved", from, directory);
            moved.target = Some(ByteBuf::from(path));
            return records.add(&moved);
        }
        self.settle(records)?;
        records.add(&event("created", path.clone(), directory))?;
        if directory {
            self.follow_new(&path, records)?;
        }
        Ok(())
    }

    /// What went away did not come back: for whoever watches it is removed.
    fn settle(&mut self, records: &mut Records<'_>) -> Result<(), Errno> {
        let Some((_, path, directory)) = self.moving.take() else {
            return Ok(());
        };
        if directory {
            self.rename_paths(&path, None);
        }
        records.add(&event("removed", path, directory))
    }

    /// Directories below `from` are now below `to`, or out of sight.
    fn rename_paths(&mut self, from: &[u8], to: Option<&[u8]>) {
        let mut gone = Vec::new();
        for (number, path) in &mut self.paths {
            let Some(rest) = path.strip_prefix(from) else {
                continue;
            };
            if !rest.is_empty() && rest[0] != b'/' {
                continue;
            }
            match to {
                Some(to) => *path = [to, rest].concat(),
                None => gone.push(*number),
            }
        }
        for number in gone {
            self.paths.remove(&number);
            let _gone = inotify::remove_watch(&self.inotify, number);
        }
    }

    fn overflow(&mut self, records: &mut Records<'_>) -> Result<(), Errno> {
        records.add(&event("overflow", Vec::new(), false))?;
        if self.recursive {
            // Directories may have been made unseen.
            self.follow(b"", &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    fn follow_new(&mut self, path: &[u8], records: &mut Records<'_>) -> Result<(), Errno> {
        if !self.recursive {
            return Ok(());
        }
        // What was made in it before it was watched is told now; what was made since may be told twice.
        self.follow(path, &mut |path, directory| {
            records.add(&event("created", path.to_vec(), directory))
        })
    }

    /// Watch a directory and those below it, and say what is found in them.
    fn follow(&mut self, path: &[u8], found: &mut Found<'_>) -> Result<(), Errno> {
        let mut pending = vec![path.to_vec()];
        while let Some(path) = pending.pop() {
            let Some(directory) = self.enter(&path)? else {
                continue;
            };
            let mut entries = Dir::read_from(&directory)?;
            while let Some(entry) = entries.read() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let Ok(stat) = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue; // gone already
                };
                let below = [&path[..], if path.is_empty() { b"" } else { b"/" }, name].concat();
                let directory = is(&stat, FileType::Directory);
                found(&below, directory)?;
                if directory && below.iter().filter(|byte| **byte == b'/').count() < MOST_DEPTH {
                    pending.push(below);
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
        let directory = if path.is_empty() {
            fs::openat(&self.root, c".", DIRECTORY, Mode::empty())
        } else {
            in_root::open_beneath(&self.root, path, DIRECTORY)
        };
        let directory = match directory {
            Ok(directory) if !is_proc(&directory)? => directory,
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {
                return Ok(None)
            }
            Err(errno) => return Err(errno),
        };
        if self.paths.len() >= MOST_DIRECTORIES {
            return Err(Errno::NOSPC);
        }
        rustix::process::fchdir(&directory)?;
        let number = inotify::add_watch(&self.inotify, c".", WANTED)?;
        self.paths.insert(number, path.to_vec());
        Ok(Some(directory))
    }
}

fn event(kind: &str, path: Vec<u8>, directory: bool) -> FileEvent {
    FileEvent {
        kind: kind.to_owned(),
        path: ByteBuf::from(path),
        target: None,
        directory,
    }
}
