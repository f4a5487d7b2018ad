//! Calls whose refusal is on record, in words. A few hundred different ones at most: what a program puts into an argument
//! makes no new word.

use super::{BTRFS, EXT4_IOC_MOVE_EXT, FS_IOC_SETFLAGS, KIND_OF_SOCKET, TIOCLINUX, TIOCSTI, XFS};

/// What a refused call was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// What it was for.
    pub reason: &'static str,
    /// Its name.
    pub name: &'static str,
}

type Group = (&'static str, &'static [(i64, &'static str)]);

/// Those that are refused whatever their arguments are.
#[rustfmt::skip]
const LISTED: &[Group] = &[
    ("mount", &[
        (libc::SYS_mount, "mount"), (libc::SYS_umount2, "umount2"), (libc::SYS_pivot_root, "pivot_root"),
        (libc::SYS_fsopen, "fsopen"), (libc::SYS_fsmount, "fsmount"), (libc::SYS_fsconfig, "fsconfig"),
        (libc::SYS_fspick, "fspick"), (libc::SYS_move_mount, "move_mount"), (libc::SYS_open_tree, "open_tree"),
        (libc::SYS_mount_setattr, "mount_setattr"),
    ]),
    ("namespace", &[(libc::SYS_setns, "setns"), (libc::SYS_unshare, "unshare"), (libc::SYS_clone, "clone")]),
    ("kernel", &[
        (libc::SYS_bpf, "bpf"), (libc::SYS_perf_event_open, "perf_event_open"),
        (libc::SYS_io_uring_setup, "io_uring_setup"), (libc::SYS_userfaultfd, "userfaultfd"),
        (libc::SYS_init_module, "init_module"), (libc::SYS_finit_module, "finit_module"),
        (libc::SYS_delete_module, "delete_module"), (libc::SYS_kexec_load, "kexec_load"),
        (libc::SYS_kexec_file_load, "kexec_file_load"), (libc::SYS_reboot, "reboot"), (libc::SYS_swapon, "swapon"),
        (libc::SYS_swapoff, "swapoff"), (libc::SYS_acct, "acct"), (libc::SYS_syslog, "syslog"),
        (libc::SYS_settimeofday, "settimeofday"), (libc::SYS_clock_settime, "clock_settime"),
        #[cfg(target_arch = "x86_64")] (libc::SYS_iopl, "iopl"),
        #[cfg(target_arch = "x86_64")] (libc::SYS_ioperm, "ioperm"),
    ]),
    ("key", &[(libc::SYS_add_key, "add_key"), (libc::SYS_keyctl, "keyctl"), (libc::SYS_request_key, "request_key")]),
    ("handle", &[(libc::SYS_open_by_handle_at, "open_by_handle_at")]),
    ("trace", &[
        (libc::SYS_ptrace, "ptrace"), (libc::SYS_process_vm_readv, "process_vm_readv"),
        (libc::SYS_process_vm_writev, "process_vm_writev"), (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    ]),
];

fn listed(number: i64) -> Option<Noted> {
    LISTED.iter().find_map(|(reason, calls)| {
        let call = calls.iter().find(|(known, _)| *known == number);
        call.map(|(_, name)| Noted { reason, name })
    })
}

/// Whether a refusal of this call is on record.
pub(super) fn is_listed(number: i64) -> bool {
    listed(number).is_some()
}

/// A call in words.
#[must_use]
pub fn noted(number: i32, arguments: [u64; 6]) -> Noted {
    match i64::from(number) {
        libc::SYS_socket => Noted {
            reason: "socket",
            name: socket(arguments[0] as u32, arguments[1] as u32),
        },
        libc::SYS_ioctl => command(arguments[1] as u32),
        other => listed(other).unwrap_or(Noted {
            reason: "other",
            name: "other",
        }),
    }
}

fn socket(family: u32, kind: u32) -> &'static str {
    match family as i32 {
        libc::AF_PACKET => "socket AF_PACKET",
        libc::AF_VSOCK => "socket AF_VSOCK",
        libc::AF_ALG => "socket AF_ALG",
        libc::AF_INET | libc::AF_INET6 if kind & KIND_OF_SOCKET == libc::SOCK_RAW as u32 => {
            "socket SOCK_RAW"
        }
        _ => "socket of another family",
    }
}

fn command(command: u32) -> Noted {
    let of = |(mask, kind): (u32, u32)| command & mask == kind;
    let (reason, name) = match command {
        TIOCSTI => ("terminal", "ioctl TIOCSTI"),
        TIOCLINUX => ("terminal", "ioctl TIOCLINUX"),
        FS_IOC_SETFLAGS => ("extents", "ioctl FS_IOC_SETFLAGS"),
        EXT4_IOC_MOVE_EXT => ("extents", "ioctl EXT4_IOC_MOVE_EXT"),
        _ if of(BTRFS) => ("extents", "ioctl of btrfs"),
        _ if of(XFS) => ("extents", "ioctl of XFS"),
        _ => ("other", "ioctl"),
    };
    Noted { reason, name }
}
