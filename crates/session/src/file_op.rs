//! `End::File`: one file operation by forked code, with the caller's IDs, inside the sandbox.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::draft::{Draft, PERMISSIONS};
use crate::failing::{shown, Doing, Fault};
use crate::file_target::{self, Place};
use crate::pipe_io::{read_some, write_all};
use crate::plan::{FdIndex, FileOp, FileReport};
use crate::{file_calls, file_list, file_watch, pack, sys, unpack};

const PART: usize = 128 * 1024;
const NEW_FILE_MODE: u32 = 0o644;

/// Do the operation. `began` is called once its file is found good; what fails later is in the report.
pub(crate) fn run(op: &FileOp, fds: &[OwnedFd], began: &dyn Fn()) -> Result<FileReport, Fault> {
    sys::set_disposition(libc::SIGPIPE, true);
    let pipe = |index: &FdIndex| fds[usize::from(*index)].as_fd();
    match op {
        FileOp::Read {
            path,
            offset,
            limit,
            output,
        } => {
            let (file, stat) = file_target::open_regular(path)?;
            began();
            Ok(read(&file, &stat, *offset, *limit, pipe(output)))
        }
        FileOp::Write {
            path,
            mode,
            parents,
            length,
            input,
        } => {
            let place = file_target::find_place(path, *parents)?;
            let draft =
                draft_of(&place).doing(|| format!("create a file beside {}", shown(path)))?;
            began();
            Ok(write(draft, &place, *mode, pipe(input), *length))
        }
        FileOp::Call(call) => {
            began();
            Ok(file_calls::run(call))
        }
        FileOp::List {
            path,
            depth,
            output,
        } => {
            let directory = file_list::open(path)?;
            began();
            Ok(file_list::run(directory, *depth, &pipe(output)))
        }
        FileOp::Watch {
            path,
            recursive,
            output,
        } => {
            let mut watch = file_watch::Watch::begin(path, *recursive)?;
            began();
            Ok(watch.run(&pipe(output)))
        }
        FileOp::Pack {
            path,
            follow,
            name,
            output,
        } => {
            let source = pack::open(path, *follow)?;
            began();
            Ok(pack::run(source, name, &pipe(output)))
        }
        FileOp::Unpack {
            path,
            parents,
            owners,
            input,
        } => {
            began();
            Ok(unpack::run(path, *parents, *owners, &pipe(input)))
        }
    }
}

fn report(errno: Option<Errno>, bytes: u64, stat: &Stat) -> FileReport {
    FileReport {
        errno: errno.map_or(0, Errno::raw_os_error),
        bytes,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & PERMISSIONS,
        ..FileReport::default()
    }
}

fn read(
    file: &OwnedFd,
    stat: &Stat,
    offset: u64,
    limit: Option<u64>,
    output: BorrowedFd<'_>,
) -> FileReport {
    let mut buffer = vec![0_u8; PART];
    let limit = limit.unwrap_or(u64::MAX);
    let mut done = 0_u64;
    while done < limit {
        let Some(position) = offset
            .checked_add(done)
            .filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        let part = buffer
            .len()
            .min(usize::try_from(limit - done).unwrap_or(PART));
        let length = match rustix::io::pread(file, &mut buffer[..part], position) {
            Ok(0) => break,
            Ok(length) => length,
            Err(errno) => return report(Some(errno), done, stat),
        };
        let (written, outcome) = write_all(output, &buffer[..length]);
        done += written as u64;
        if let Err(errno) = outcome {
            return report(Some(errno), done, stat);
        }
    }
    report(None, done, stat)
}

fn draft_of(place: &Place) -> Result<Draft<'_>, Errno> {
    let draft = Draft::create(&place.directory)?;
    if let Some(stat) = &place.present {
        draft.own_as(stat)?;
    }
    Ok(draft)
}

fn write(
    draft: Draft<'_>,
    place: &Place,
    mode: Option<u32>,
    input: BorrowedFd<'_>,
    length: u64,
) -> FileReport {
    let kept = place.present.map_or(NEW_FILE_MODE, |stat| stat.st_mode);
    let (bytes, outcome) = fill(&draft.file, input, length);
    match outcome.and_then(|()| draft.place(&place.name, mode.unwrap_or(kept))) {
        Ok(stat) => report(None, bytes, &stat),
        Err(errno) => FileReport {
            errno: errno.raw_os_error(),
            bytes,
            ..FileReport::default()
        },
    }
}

fn fill(file: &OwnedFd, input: BorrowedFd<'_>, length: u64) -> (u64, Result<(), Errno>) {
    let mut buffer = vec![0_u8; PART];
    let mut done = 0_u64;
    while done < length {
        let part = buffer
            .len()
            .min(usize::try_from(length - done).unwrap_or(PART));
        let got = match read_some(input, &mut buffer[..part]) {
            Ok(0) => return (done, Err(Errno::NODATA)),
            Ok(got) => got,
            Err(errno) => return (done, Err(errno)),
        };
        let (written, outcome) = write_all(file.as_fd(), &buffer[..got]);
        done += written as u64;
        if outcome.is_err() {
            return (done, outcome);
        }
    }
    (done, Ok(()))
}
