//! `End::Exec`: descriptors into their places, then the one `execve`.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::failing::{shown, Doing, Fault};
use crate::plan::Exec;
use crate::{fdmap, in_root, sys};

/// What `execvp` searches without a PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Become the program. Returns only when that failed; `channel` is what still reaches the parent then.
pub(crate) fn run(
    exec: &Exec,
    fds: &[OwnedFd],
    terminal: Option<&OwnedFd>,
    home: Option<&[u8]>,
    channel: &mut OwnedFd,
) -> Fault {
    match prepare(exec, fds, terminal, channel) {
        Ok(file) => {
            let env = with_home(exec, home);
            if let Err(errno) = sys::unblock_signals() {
                return Fault::with(errno, "unblock signals");
            }
            execute(exec, file.as_ref(), &env)
        }
        Err(fault) => fault,
    }
}

/// Put every descriptor at its number; everything else closes at the exec. Returns the program's own file.
fn prepare(
    exec: &Exec,
    fds: &[OwnedFd],
    terminal: Option<&OwnedFd>,
    channel: &mut OwnedFd,
) -> Result<Option<OwnedFd>, Fault> {
    let mut placed: Vec<(BorrowedFd<'_>, i32)> = exec
        .fds
        .iter()
        .map(|(index, target)| (fds[usize::from(*index)].as_fd(), *target))
        .collect();
    if let Some(terminal) = terminal {
        placed.extend((0..3).map(|target| (terminal.as_fd(), target)));
    }
    let targets: Vec<i32> = placed.iter().map(|(_, target)| *target).collect();
    let floor = fdmap::floor(targets.iter().copied());
    let moved = |fd: BorrowedFd<'_>| {
        rustix::io::fcntl_dupfd_cloexec(fd, floor).doing(|| "copy a descriptor")
    };
    *channel = moved(channel.as_fd())?;
    let file = match exec.file {
        Some(index) => Some(moved(fds[usize::from(index)].as_fd())?),
        None => None,
    };
    let mut copies = Vec::with_capacity(targets.len());
    for (source, target) in placed {
        copies.push((moved(source)?, target));
    }
    for (copy, target) in &copies {
        sys::dup2(copy.as_fd(), *target).doing(|| format!("place descriptor {target}"))?;
    }
    let unset: Vec<i32> = fdmap::unset(&targets).collect();
    if !unset.is_empty() {
        place_null(&unset, floor)?;
    }
    let standard = targets.iter().copied().chain(unset).collect::<Vec<_>>();
    #[cfg(feature = "weaken")]
    if !dsec_weaken::keeps!("close_on_exec") {
        crate::weaken::inherit_all();
        return Ok(file);
    }
    for (first, last) in fdmap::gaps(&standard) {
        sys::close_range(first, last, sys::CLOSE_RANGE_CLOEXEC).doing(|| "mark descriptors")?;
    }
    Ok(file)
}

/// /dev/null of the sandbox, which may be anything by now, at the numbers given.
fn place_null(numbers: &[i32], floor: i32) -> Result<(), Fault> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = in_root::open_here(b"/dev/null", flags).doing(|| "open /dev/null")?;
    let null = rustix::io::fcntl_dupfd_cloexec(&opened, floor).doing(|| "copy a descriptor")?;
    let stat = rustix::fs::fstat(&null).doing(|| "look at /dev/null")?;
    let real = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(1, 3);
    if !real {
        return Err(Fault::saying("/dev/null is not the null device"));
    }
    rustix::fs::fcntl_setfl(&null, OFlags::RDWR).doing(|| "make /dev/null blocking")?;
    // The opened one may itself have a number that is wanted: it must not be closed over its new owner.
    let raw = opened.as_raw_fd();
    for number in numbers {
        sys::dup2(null.as_fd(), *number).doing(|| format!("place descriptor {number}"))?;
    }
    if raw < floor {
        std::mem::forget(opened);
    }
    Ok(())
}

/// The environment, with HOME from the user found when the caller gave none.
fn with_home(exec: &Exec, home: Option<&[u8]>) -> Vec<Vec<u8>> {
    let mut env: Vec<Vec<u8>> = exec.env.iter().map(|entry| entry.to_vec()).collect();
    if let Some(home) = home {
        if !env.iter().any(|entry| entry.starts_with(b"HOME=")) {
            env.push([b"HOME=", home].concat());
        }
    }
    env
}

fn execute(exec: &Exec, file: Option<&OwnedFd>, env: &[Vec<u8>]) -> Fault {
    let (Ok(argv), Ok(envp)) = (
        c_strings(exec.argv.iter().map(|entry| entry.as_slice())),
        c_strings(env.iter().map(Vec::as_slice)),
    ) else {
        return Fault::with(Errno::INVAL, "an argument or variable holds a zero byte");
    };
    let arrays = (pointers(&argv), pointers(&envp));
    if let Some(file) = file {
        let errno = sys::execute(Some(file.as_fd()), c"", &arrays.0, &arrays.1);
        return Fault::with(errno, "execute the open file");
    }
    let path = path_of(env);
    let mut missing = Fault::with(Errno::NOENT, "no program is named");
    for program in &exec.programs {
        let attempt = |path: &CStr| {
            let mut words = arrays.0.clone();
            if exec.argv.first().is_some_and(|word| word.is_empty()) {
                words[0] = path.as_ptr();
            }
            sys::execute(None, path, &words, &arrays.1)
        };
        match try_program(program, path, &attempt) {
            Err(fault) if fault.errno == Errno::NOENT.raw_os_error() => missing = fault,
            Err(fault) => return fault,
            Ok(never) => match never {},
        }
    }
    missing
}

enum Never {}

/// All places of one program, as `execvp` tries them, but what is no program is not given to a shell.
fn try_program(
    program: &[u8],
    path: &[u8],
    attempt: &dyn Fn(&CStr) -> Errno,
) -> Result<Never, Fault> {
    let mut outcome = Fault::with(Errno::NOENT, format!("{} is not found", shown(program)));
    let searched = !program.contains(&b'/');
    for candidate in candidates(program, path) {
        let at = shown(&candidate);
        let Ok(c_path) = CString::new(candidate.clone()) else {
            return Err(Fault::with(Errno::INVAL, format!("{at} holds a zero byte")));
        };
        let errno = match in_root::open_here(&candidate, OFlags::PATH) {
            Err(errno) => errno,
            Ok(_) => match attempt(&c_path) {
                Errno::NOENT => {
                    if outcome.errno == Errno::NOENT.raw_os_error() {
                        outcome.message = format!("the interpreter of {at} is missing");
                    }
                    continue;
                }
                errno => errno,
            },
        };
        match errno {
            Errno::NOENT => {}
            Errno::NOTDIR | Errno::NAMETOOLONG if searched => {}
            Errno::ACCESS if searched => {
                outcome = Fault::with(errno, format!("{at} may not be executed"));
            }
            errno => return Err(Fault::with(errno, format!("execute {at}"))),
        }
    }
    Err(outcome)
}

/// The paths a program's name may mean.
fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.is_empty() {
        return Vec::new();
    }
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    path.split(|byte| *byte == b':')
        .map(|directory| match directory {
            b"" => program.to_vec(),
            _ => [directory, b"/", program].concat(),
        })
        .collect()
}

fn path_of(env: &[Vec<u8>]) -> &[u8] {
    env.iter()
        .find_map(|entry| entry.strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH)
}

fn c_strings<'a>(
    items: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<CString>, std::ffi::NulError> {
    items.map(CString::new).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rustix::io::Errno;

    use super::{candidates, path_of, try_program};

    /// A name with a slash is a path; another is searched in order, an empty directory being the current one.
    #[test]
    fn search_order() {
        assert_eq!(candidates(b"./a", b"/bin"), vec![b"./a".to_vec()]);
        assert_eq!(
            candidates(b"a", b"/x::/y"),
            vec![b"/x/a".to_vec(), b"a".to_vec(), b"/y/a".to_vec()]
        );
        assert!(candidates(b"", b"/bin").is_empty());
    }

    /// The last resort is the C library's.
    #[test]
    fn path_of_the_environment() {
        assert_eq!(path_of(&[b"A=1".to_vec(), b"PATH=/q".to_vec()]), b"/q");
        assert_eq!(path_of(&[]), b"/bin:/usr/bin");
    }

    fn fails_with(program: &[u8], path: &[u8], errnos: &[Errno]) -> (i32, usize) {
        let left = RefCell::new(errnos.to_vec());
        let outcome = try_program(program, path, &|_| left.borrow_mut().remove(0));
        let errno = match outcome {
            Err(fault) => fault.errno,
            Ok(never) => match never {},
        };
        let tried = errnos.len() - left.borrow().len();
        (errno, tried)
    }

    /// Permission denied is remembered while the search goes on; what is no program ends it.
    #[test]
    fn errors_of_the_search() {
        let places = b"/nowhere-at-all:/etc:/etc";
        let access = Errno::ACCESS.raw_os_error();
        let noexec = Errno::NOEXEC.raw_os_error();
        let noent = Errno::NOENT.raw_os_error();
        assert_eq!(
            fails_with(b"hostname", places, &[Errno::ACCESS, Errno::NOENT]).1,
            2
        );
        assert_eq!(
            fails_with(b"hostname", places, &[Errno::ACCESS, Errno::ACCESS]),
            (access, 2)
        );
        assert_eq!(
            fails_with(b"hostname", places, &[Errno::NOEXEC, Errno::NOENT]),
            (noexec, 1)
        );
        assert_eq!(
            fails_with(b"/etc/hostname", b"", &[Errno::ACCESS]),
            (access, 1)
        );
        assert_eq!(fails_with(b"no-such-program", places, &[]), (noent, 0));
    }

    /// Magic links of /proc name no program: the helper's own executable stays out of reach.
    #[test]
    fn magic_links_are_no_programs() {
        let (errno, tried) = fails_with(b"/proc/self/exe", b"", &[Errno::NOENT]);
        assert_eq!((errno, tried), (Errno::LOOP.raw_os_error(), 0));
    }
}
