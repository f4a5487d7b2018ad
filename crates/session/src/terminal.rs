//! `OpenPty`: a terminal of the sandbox's own, its master for the parent, its other end for the program.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, Winsize};

use crate::failing::{Doing, Fault};
use crate::status::{self, Status};
use crate::{in_root, sys};

/// Where a devpts gives out terminals. Its own node, because /dev/ptmx is a link that a layer may hold too.
const MULTIPLEXER: &[u8] = b"/dev/pts/ptmx";
/// Magic number of devpts.
const DEVPTS: u64 = 0x1cd1;

/// Opens a terminal that belongs to the present user, makes it this session's, and sends its master by `channel`.
pub(crate) fn open(channel: BorrowedFd<'_>, rows: u16, cols: u16) -> Result<OwnedFd, Fault> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK;
    let master = in_root::open_here(MULTIPLEXER, flags).doing(|| "open /dev/pts/ptmx")?;
    let stat = rustix::fs::fstat(&master).doing(|| "look at /dev/pts/ptmx")?;
    let system = rustix::fs::fstatfs(&master).doing(|| "look at /dev/pts")?;
    let real = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(5, 2)
        && system.f_type as u64 == DEVPTS;
    if !real {
        return Err(Fault::with(
            Errno::NODEV,
            "/dev/pts/ptmx is not the sandbox's own",
        ));
    }
    rustix::pty::unlockpt(&master).doing(|| "unlock the terminal")?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal =
        rustix::pty::ioctl_tiocgptpeer(&master, peer).doing(|| "open the terminal's other end")?;
    set_up(&master, &terminal, rows, cols).doing(|| "set the terminal up")?;
    rustix::process::ioctl_tiocsctty(&terminal).doing(|| "make it the controlling terminal")?;
    status::send(channel, &Status::Held, &[&master]).doing(|| "hand the terminal over")?;
    Ok(terminal)
}

fn set_up(master: &OwnedFd, terminal: &OwnedFd, rows: u16, cols: u16) -> Result<(), Errno> {
    // Programs and their keyboards speak UTF-8: erasing takes a character away, not a byte of it.
    let mut modes = rustix::termios::tcgetattr(terminal)?;
    modes.input_modes |= InputModes::IUTF8;
    rustix::termios::tcsetattr(terminal, OptionalActions::Now, &modes)?;
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(master, size)?;
    sys::blocking(master, false)
}
