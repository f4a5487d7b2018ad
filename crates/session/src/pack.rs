//! `FileOp::Pack`: a file or a tree as a tar archive, in constant memory, holes as holes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use crate::draft::PERMISSIONS;
use crate::failing::{shown, Doing, Fault};
use crate::file_calls::{failed, is, plain};
use crate::file_target::{is_proc, parts, refuse_proc};
use crate::in_root;
use crate::pipe_io::write_all;
use crate::plan::FileReport;
use crate::tar::{self, Kind, Member, BLOCK, MOST_NAME, MOST_PARTS};

/// Files of several names that are remembered; of the others each name becomes a file.
const MOST_LINKED: usize = 65_536;
const PART: usize = 256 * 1024;
const AT_ONCE: usize = 1 << 20;
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What is to be packed: its directory (or itself), its name there, what it is.
pub(crate) struct Source {
    parent: OwnedFd,
    name: Vec<u8>,
    stat: Stat,
}

/// Find it. What can be in no archive is refused.
pub(crate) fn open(path: &[u8], follow: bool) -> Result<Source, Fault> {
    let name = shown(path);
    let doing = || format!("open {name}");
    let last = if follow {
        OFlags::PATH
    } else {
        OFlags::PATH | OFlags::NOFOLLOW
    };
    let found = in_root::open_here(path, last).doing(doing)?;
    refuse_proc(&found, &name)?;
    let stat = fs::fstat(&found).doing(doing)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            // By descriptor, so that it is what was looked at.
            let parent = fs::openat(&found, c".", OPEN | OFlags::DIRECTORY, Mode::empty());
            Ok(Source {
                parent: parent.doing(doing)?,
                name: Vec::new(),
                stat,
            })
        }
        FileType::RegularFile | FileType::Symlink => {
            let real = if follow {
                resolved(path)?
            } else {
                path.to_vec()
            };
            let (parent, name) = parts(&real)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            Ok(Source {
                parent: in_root::open_here(parent, flags).doing(doing)?,
                name: name.to_vec(),
                stat,
            })
        }
        _ => Err(Fault::with(
            Errno::INVAL,
            format!("{name} is neither file, directory nor link"),
        )),
    }
}

/// A path with the links at its end followed.
fn resolved(path: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut path = path.to_vec();
    for _ in 0..40 {
        let (parent, name) = parts(&path)?;
        let directory = in_root::open_here(parent, OFlags::PATH | OFlags::DIRECTORY)
            .doing(|| format!("open {}", shown(parent)))?;
        match fs::readlinkat(&directory, name, Vec::new()) {
            Ok(target) => path = crate::file_target::joined(parent, target.as_bytes()),
            Err(Errno::INVAL) => return Ok(path),
            Err(errno) => return Err(plain(errno)),
        }
    }
    Err(plain(Errno::LOOP))
}

/// Write the archive. What goes while it is read is left out; what becomes shorter is an error.
pub(crate) fn run(source: Source, name: &[u8], output: &impl AsFd) -> FileReport {
    let mut pack = Pack {
        output: output.as_fd(),
        path: name.to_vec(),
        linked: HashMap::new(),
        stack: Vec::new(),
        buffer: Vec::new(),
        report: FileReport::default(),
    };
    let outcome = pack.all(source);
    let mut report = pack.report;
    if let Err(fault) = outcome {
        let failure = failed(fault);
        report.errno = failure.errno;
        report.message = failure.message;
        report.path = Some(ByteBuf::from(pack.path));
    }
    report
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
    length: usize,
}

struct Pack<'a> {
    output: BorrowedFd<'a>,
    path: Vec<u8>,
    linked: HashMap<(u64, u64), Vec<u8>>,
    stack: Vec<Level>,
    buffer: Vec<u8>,
    report: FileReport,
}

impl Pack<'_> {
    fn all(&mut self, source: Source) -> Result<(), Fault> {
        if is(&source.stat, FileType::Directory) {
            self.member(&self.described(&source.stat, Kind::Directory))?;
            self.enter(source.parent)?;
            self.walk()?;
        } else {
            self.entry(source.parent.as_fd(), &source.name)?;
            if self.report.entries == 0 {
                return Err(plain(Errno::NOENT));
            }
        }
        self.write(&tar::end_mark())
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        write_all(self.output, bytes).1.map_err(plain)
    }

    fn enter(&mut self, directory: OwnedFd) -> Result<(), Fault> {
        self.path.push(b'/');
        self.stack.push(Level {
            entries: Dir::read_from(&directory).map_err(plain)?,
            directory,
            length: self.path.len(),
        });
        Ok(())
    }

    fn walk(&mut self) -> Result<(), Fault> {
        while let Some(level) = self.stack.last_mut() {
            self.path.truncate(level.length);
            let Some(entry) = level.entries.read() else {
                self.stack.pop();
                continue;
            };
            let entry = entry.map_err(plain)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.path.extend(name);
            if self.path.len() > MOST_NAME {
                return Err(plain(Errno::NAMETOOLONG));
            }
            let level = level
                .directory
                .try_clone()
                .map_err(|_| plain(Errno::MFILE))?;
            self.entry(level.as_fd(), name)?;
        }
        Ok(())
    }

    fn entry(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Fault> {
        let stat = match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            result => result.map_err(plain)?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(directory, name, &stat),
            FileType::RegularFile => self.file(directory, name),
            FileType::Symlink => {
                let target = match fs::readlinkat(directory, name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    result => result.map_err(plain)?,
                };
                let mut member = self.described(&stat, Kind::Link);
                member.link = target.into_bytes();
                self.member(&member)
            }
            _ => {
                self.report.skipped += 1;
                Ok(())
            }
        }
    }

    /// What another filesystem has mounted there is left out; /proc would be the helper's own.
    fn directory(&mut self, above: BorrowedFd<'_>, name: &[u8], seen: &Stat) -> Result<(), Fault> {
        let found = match fs::openat(above, name, OPEN | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            result => result.map_err(plain)?,
        };
        let stat = fs::fstat(&found).map_err(plain)?;
        self.member(&self.described(&stat, Kind::Directory))?;
        let outside = fs::fstat(above).map_err(plain)?.st_dev != stat.st_dev;
        if outside || seen.st_ino != stat.st_ino || is_proc(&found).map_err(plain)? {
            return Ok(());
        }
        self.enter(found)
    }

    fn file(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Fault> {
        let file = match fs::openat(directory, name, OPEN, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
            result => result.map_err(plain)?,
        };
        let stat = fs::fstat(&file).map_err(plain)?;
        if !is(&stat, FileType::RegularFile) || is_proc(&file).map_err(plain)? {
            self.report.skipped += 1;
            return Ok(());
        }
        let mut member = self.described(&stat, Kind::File);
        if stat.st_nlink > 1 {
            let identity = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.linked.get(&identity) {
                (member.kind, member.link) = (Kind::HardLink, first.clone());
                return self.member(&member);
            }
            if self.linked.len() < MOST_LINKED {
                self.linked.insert(identity, self.path.clone());
            }
        }
        member.size = u64::try_from(stat.st_size).unwrap_or(0);
        if u64::try_from(stat.st_blocks).unwrap_or(0) * 512 < member.size {
            member.sparse = data_parts(&file, member.size)?;
        }
        self.member(&member)?;
        self.content(&file, &member)
    }

    fn described(&self, stat: &Stat, kind: Kind) -> Member {
        let mut name = self.path.clone();
        if kind == Kind::Directory {
            name.push(b'/');
        }
        Member {
            kind,
            name,
            link: Vec::new(),
            mode: stat.st_mode & PERMISSIONS,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            size: 0,
            sparse: None,
        }
    }

    fn member(&mut self, member: &Member) -> Result<(), Fault> {
        self.report.entries += 1;
        self.report.bytes += member.size;
        self.write(&tar::header(member))
    }

    fn content(&mut self, file: &OwnedFd, member: &Member) -> Result<(), Fault> {
        let mut stored = 0_u64;
        for (offset, length) in member.parts() {
            self.part(file, offset, length)?;
            stored += length;
        }
        let rest = (BLOCK - (stored % BLOCK as u64) as usize) % BLOCK;
        self.write(&[0; BLOCK][..rest])
    }

    /// From the page cache into the pipe, without a copy where the filesystem can.
    fn part(&mut self, file: &OwnedFd, offset: u64, length: u64) -> Result<(), Fault> {
        let mut at = offset;
        let end = offset + length;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(AT_ONCE).min(AT_ONCE);
            let sent = match fs::sendfile(self.output, file, Some(&mut at), most) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::INVAL) => return self.copied(file, at, end),
                result => result.map_err(plain)?,
            };
            if sent == 0 {
                return Err(shorter());
            }
        }
        Ok(())
    }

    fn copied(&mut self, file: &OwnedFd, mut at: u64, end: u64) -> Result<(), Fault> {
        self.buffer.resize(PART, 0);
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(PART).min(PART);
            let got = rustix::io::pread(file, &mut self.buffer[..most], at).map_err(plain)?;
            if got == 0 {
                return Err(shorter());
            }
            self.write(&self.buffer[..got])?;
            at += got as u64;
        }
        Ok(())
    }
}

fn shorter() -> Fault {
    Fault::with(Errno::STALE, "it became shorter while it was read")
}

/// Where a file has data. `None`: everywhere. Beyond `MOST_PARTS` the last part goes to the end.
fn data_parts(file: &OwnedFd, size: u64) -> Result<Option<Vec<(u64, u64)>>, Fault> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(plain(errno)),
        };
        if start >= size {
            break;
        }
        let hole = fs::seek(file, SeekFrom::Hole(start)).map_err(plain)?;
        let end = if parts.len() + 2 >= MOST_PARTS {
            size
        } else {
            hole.min(size)
        };
        parts.push((start, end - start));
        at = end;
    }
    if parts == [(0, size)] {
        return Ok(None);
    }
    // As GNU tar does: an empty part at the end says how long the file is.
    parts.push((size, 0));
    Ok(Some(parts))
}
