//! `FileOp::Unpack`: a tar archive as a file or a tree. No member leads out of the target, whatever links the archive
//! or the sandbox's programs put there meanwhile; each file appears whole, under its name, or not at all.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use crate::draft::{replace_by, Draft};
use crate::failing::Fault;
use crate::file_calls::{failed, is, plain};
use crate::file_target::{find_place, open_directory, parts, refuse_proc};
use crate::in_root;
use crate::pipe_io::write_all;
use crate::plan::FileReport;
use crate::tar::{Kind, Member, Reader};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
/// While it is filled; what the archive says comes when it is left.
const WRITABLE: u32 = 0o700;
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

pub(crate) fn run(path: &[u8], parents: bool, owners: bool, input: &impl AsFd) -> FileReport {
    let mut unpack = Unpack {
        path,
        parents,
        owners,
        root: None,
        open: Vec::new(),
        last: None,
        member: Vec::new(),
        report: FileReport::default(),
    };
    let outcome = unpack.all(&mut Reader::new(input));
    let mut report = unpack.report;
    if let Err(fault) = outcome {
        let failure = failed(fault);
        report.errno = failure.errno;
        report.message = failure.message;
        report.path = Some(ByteBuf::from(
            [path, b"/", &unpack.member]
                .concat()
                .strip_suffix(b"/")
                .unwrap_or(path),
        ));
    }
    report
}

/// A directory that was made and is still being filled.
struct Open {
    name: Vec<u8>,
    directory: OwnedFd,
    mode: u32,
    mtime: i64,
}

struct Unpack<'a> {
    path: &'a [u8],
    parents: bool,
    owners: bool,
    root: Option<OwnedFd>,
    open: Vec<Open>,
    /// The directory of the last member: mostly that of the next one too.
    last: Option<(Vec<u8>, OwnedFd)>,
    member: Vec<u8>,
    report: FileReport,
}

impl Unpack<'_> {
    fn all(&mut self, reader: &mut Reader<'_>) -> Result<(), Fault> {
        while let Some(member) = reader.next()? {
            self.member = relative(&member.name)?;
            self.leave_others()?;
            if self.member.is_empty() {
                self.itself(&member, reader)?;
            } else {
                self.below(&member, reader)?;
            }
        }
        self.member.clear();
        self.leave_others()?;
        while let Some(open) = self.open.pop() {
            finish(&open)?;
        }
        reader.drain()
    }

    /// Finish the directories that this member is not in.
    fn leave_others(&mut self) -> Result<(), Fault> {
        while let Some(open) = self.open.last() {
            let inside = self
                .member
                .strip_prefix(open.name.as_slice())
                .is_some_and(|rest| open.name.is_empty() || rest.first() == Some(&b'/'));
            if inside && !self.member.is_empty() {
                break;
            }
            if let Some(open) = self.open.pop() {
                finish(&open)?;
            }
        }
        Ok(())
    }

    /// The member `.`: the path itself.
    fn itself(&mut self, member: &Member, reader: &mut Reader<'_>) -> Result<(), Fault> {
        match member.kind {
            Kind::Directory => {
                let made = self.make_root()?;
                if let (Some(root), true) = (&self.root, made) {
                    self.own(root, member)?;
                    self.open.push(Open {
                        name: Vec::new(),
                        directory: root.try_clone().map_err(|_| plain(Errno::MFILE))?,
                        mode: member.mode,
                        mtime: member.mtime,
                    });
                }
            }
            Kind::File => {
                let place = find_place(self.path, self.parents)?;
                let draft = Draft::create(&place.directory).map_err(plain)?;
                if let (Some(stat), false) = (&place.present, self.owners) {
                    draft.own_as(stat).map_err(plain)?;
                }
                self.fill(&draft.file, member, reader)?;
                draft.place(&place.name, member.mode).map_err(plain)?;
                self.report.bytes += member.size;
            }
            Kind::Link => {
                let (parent, name) = parts(self.path)?;
                let directory = open_directory(parent, self.parents)?;
                refuse_proc(&directory, "the target")?;
                self.link(&directory, name, member)?;
            }
            _ => {
                return Err(Fault::with(
                    Errno::INVAL,
                    "a member that nothing can be made of",
                ))
            }
        }
        self.report.entries += 1;
        Ok(())
    }

    /// Open the target directory; true if it had to be made.
    fn make_root(&mut self) -> Result<bool, Fault> {
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        let mut made = false;
        let root = match in_root::open_here(self.path, flags) {
            Err(Errno::NOENT) => {
                let path = self.path.trim_ascii_end();
                let end = path
                    .iter()
                    .rposition(|byte| *byte != b'/')
                    .map_or(0, |at| at + 1);
                let (parent, name) = parts(&path[..end])?;
                let above = open_directory(parent, self.parents)?;
                match fs::mkdirat(&above, name, Mode::from_raw_mode(WRITABLE)) {
                    Ok(()) => made = true,
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(plain(errno)),
                }
                fs::openat(&above, name, DIRECTORY, Mode::empty()).map_err(plain)?
            }
            result => result.map_err(plain)?,
        };
        refuse_proc(&root, "the target")?;
        self.root = Some(root);
        Ok(made)
    }

    fn below(&mut self, member: &Member, reader: &mut Reader<'_>) -> Result<(), Fault> {
        if self.root.is_none() {
            // An archive without a member for its top goes into a directory that is there.
            let found = in_root::open_here(self.path, DIRECTORY.difference(OFlags::NOFOLLOW));
            let root = found.map_err(plain)?;
            refuse_proc(&root, "the target")?;
            self.root = Some(root);
        }
        let path = self.member.clone();
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], &path[..]),
        };
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            self.last = Some((parent.to_vec(), self.parent(parent)?));
        }
        let Some((last, directory)) = self.last.take() else {
            return Ok(());
        };
        let outcome = self.put(member, &directory, name, reader);
        self.last = Some((last, directory));
        outcome
    }

    /// A directory below the target, made with those above it where they are missing.
    fn parent(&self, path: &[u8]) -> Result<OwnedFd, Fault> {
        let Some(root) = &self.root else {
            return Err(plain(Errno::NOENT));
        };
        if path.is_empty() {
            return root.try_clone().map_err(|_| plain(Errno::MFILE));
        }
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        match in_root::open_beneath(root, path, flags) {
            Err(Errno::NOENT) => {}
            result => return result.map_err(outside),
        }
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        let above = self.parent(above)?;
        match fs::mkdirat(&above, name, NEW_DIRECTORY) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(plain(errno)),
        }
        fs::openat(&above, name, DIRECTORY, Mode::empty()).map_err(plain)
    }

    fn put(
        &mut self,
        member: &Member,
        directory: &OwnedFd,
        name: &[u8],
        reader: &mut Reader<'_>,
    ) -> Result<(), Fault> {
        match member.kind {
            Kind::Directory => self.directory(member, directory, name)?,
            Kind::File => {
                let draft = Draft::create(directory).map_err(plain)?;
                self.fill(&draft.file, member, reader)?;
                draft.place(name, member.mode).map_err(plain)?;
                self.report.bytes += member.size;
            }
            Kind::Link => self.link(directory, name, member)?,
            Kind::HardLink => self.hard_link(directory, name, member)?,
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(member.mode);
                replace_by(directory.as_fd(), name, |name| {
                    fs::mknodat(directory, name, FileType::Fifo, mode, 0)
                })
                .map_err(plain)?;
            }
            Kind::Device => {
                self.report.skipped += 1;
                return Ok(());
            }
        }
        self.report.entries += 1;
        Ok(())
    }

    /// One that is there keeps its mode, owner and time; a link to one serves as one.
    fn directory(&mut self, member: &Member, above: &OwnedFd, name: &[u8]) -> Result<(), Fault> {
        match fs::mkdirat(above, name, Mode::from_raw_mode(WRITABLE)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let found = fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW).map_err(plain)?;
                if is(&found, FileType::Directory) {
                    return Ok(());
                }
                let Some(root) = &self.root else {
                    return Err(plain(Errno::NOENT));
                };
                let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
                return in_root::open_beneath(root, &self.member, flags)
                    .map(drop)
                    .map_err(outside);
            }
            Err(errno) => return Err(plain(errno)),
        }
        let directory = fs::openat(above, name, DIRECTORY, Mode::empty()).map_err(plain)?;
        self.own(&directory, member)?;
        self.open.push(Open {
            name: self.member.clone(),
            directory,
            mode: member.mode,
            mtime: member.mtime,
        });
        Ok(())
    }

    fn own(&self, file: &OwnedFd, member: &Member) -> Result<(), Fault> {
        if !self.owners {
            return Ok(());
        }
        let owner = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
        fs::fchown(file, Some(owner.0), Some(owner.1)).map_err(plain)
    }

    fn fill(&self, file: &OwnedFd, member: &Member, reader: &mut Reader<'_>) -> Result<(), Fault> {
        if member.sparse.is_some() {
            fs::ftruncate(file, member.size).map_err(plain)?;
        }
        for (offset, length) in member.parts() {
            if length == 0 {
                continue;
            }
            fs::seek(file, fs::SeekFrom::Start(offset)).map_err(plain)?;
            let mut left = length;
            while left > 0 {
                let data = reader.data_up_to(left)?;
                left -= data.len() as u64;
                write_all(file.as_fd(), data).1.map_err(plain)?;
            }
        }
        self.own(file, member)?;
        fs::futimens(file, &times(member.mtime)).map_err(plain)
    }

    fn link(&self, directory: &OwnedFd, name: &[u8], member: &Member) -> Result<(), Fault> {
        let target = member.link.as_slice();
        replace_by(directory.as_fd(), name, |name| {
            let how = AtFlags::SYMLINK_NOFOLLOW;
            fs::symlinkat(target, directory, name)?;
            if self.owners {
                let owner = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
                fs::chownat(directory, name, Some(owner.0), Some(owner.1), how)?;
            }
            fs::utimensat(directory, name, &times(member.mtime), how)
        })
        .map_err(plain)
    }

    fn hard_link(&self, directory: &OwnedFd, name: &[u8], member: &Member) -> Result<(), Fault> {
        let first = relative(&member.link)?;
        let (parent, old) = match first.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&first[..at], &first[at + 1..]),
            None => (&b""[..], &first[..]),
        };
        let from = self.parent(parent)?;
        replace_by(directory.as_fd(), name, |name| {
            fs::linkat(&from, old, directory, name, AtFlags::empty())
        })
        .map_err(plain)
    }
}

fn finish(open: &Open) -> Result<(), Fault> {
    fs::fchmod(&open.directory, Mode::from_raw_mode(open.mode)).map_err(plain)?;
    fs::futimens(&open.directory, &times(open.mtime)).map_err(plain)
}

fn times(mtime: i64) -> Timestamps {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_OMIT,
    };
    Timestamps {
        last_access: now,
        last_modification: Timespec {
            tv_sec: mtime,
            tv_nsec: 0,
        },
    }
}

fn outside(errno: Errno) -> Fault {
    match errno {
        Errno::XDEV => Fault::with(errno, "a link there leads out of the target"),
        _ => plain(errno),
    }
}

/// A member's name below the target: without slashes at its ends and dots; empty for the target itself.
pub(crate) fn relative(name: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let message = format!(
                    "a member leads out of the archive: {}",
                    crate::failing::shown(name)
                );
                return Err(Fault::with(Errno::INVAL, message));
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::relative;

    /// Names are taken below the target; dots that lead out are refused.
    #[test]
    fn keeps_names_below() {
        for (name, below) in [
            ("./", ""),
            ("/etc/x", "etc/x"),
            ("a//b/", "a/b"),
            ("./a/./b", "a/b"),
        ] {
            let found = relative(name.as_bytes()).expect("a name");
            assert_eq!(found, below.as_bytes(), "{name}");
        }
        assert!(relative(b"a/../../b").is_err());
    }
}
