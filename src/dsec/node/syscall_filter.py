"""What a part of the node that serves, and runs no other program, may not ask of the kernel: a seccomp filter.

A list of refusals, not of what is allowed: an interpreter, its C library and its event loop ask for different things
in each version. What no list can know yet, numbers beyond the last one here, does not exist for them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence

from dsec.errors import Unsupported

__all__ = ["REFUSED", "SockFprog", "loaded", "program"]

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Programs, and processes of one's own: threads are made by `clone` with CLONE_THREAD, looked at below.
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # Mounts, roots, namespaces, devices, files by handle.
    "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "mknod": (133, None),
    "mknodat": (259, 33), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # Kernel code that nothing of ours runs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "memfd_secret": (447, 447),
    "modify_ldt": (154, None), "personality": (135, 92), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    "uselib": (134, None), "vmsplice": (278, 75), "remap_file_pages": (216, 234),
    # The machine.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    "vhangup": (153, 58),
    # Whose a file is, and what it carries.
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "fchmodat2": (452, 452),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
}  # fmt: skip
"""Name → number on x86-64 and on 64-bit ARM; None where there is none."""
_LAST = 456
"""Of Linux 6.7: what came later is not there, and C libraries do without."""
_CLONE = (56, 220)
_CLONE3 = 435
_SOCKET = (41, 198)
_MODES = (((90, None), 1), ((91, 52), 1), ((268, 53), 2))
"""chmod, fchmod, fchmodat, and which argument is the mode."""
_BAD_MODE = 0o7022
"""Nothing that runs as its owner, nothing that others may write."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Netlink is how C libraries list addresses when they resolve a name."""
_CLONE_THREAD = 0x00010000

_LOAD, _EQUAL, _ABOVE, _SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_STEP = struct.Struct("=HBBI")


class SockFprog(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(machine: str) -> bytes:
    """The filter for an architecture, as the kernel reads it. Pure. Raises Unsupported."""
    if machine not in _ARCHITECTURES:
        raise Unsupported(f"there is no list of system calls for {machine}", phase="machine")
    place, audited = _ARCHITECTURES[machine]
    refused = _RETURN, 0, 0, _error(errno.EPERM)
    absent = _RETURN, 0, 0, _error(errno.ENOSYS)
    allowed = _RETURN, 0, 0, _ALLOW
    steps = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE), (_EQUAL, 1, 0, audited), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER), (_ABOVE, 0, 1, _LAST), absent,  # x32 is up there too
        (_EQUAL, 0, 1, _CLONE3), absent,  # its flags cannot be looked at
    ]  # fmt: skip
    for numbers in REFUSED.values():
        number = numbers[place]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), refused]
    steps += [
        (_EQUAL, 0, 4, _CLONE[place]),
        (_LOAD, 0, 0, _AT_ARGUMENTS), (_SET, 0, 1, _CLONE_THREAD), allowed, refused,
    ]  # fmt: skip
    for numbers, argument in _MODES:
        if (number := numbers[place]) is not None:
            steps += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * argument)]
            steps += [(_SET, 0, 1, _BAD_MODE), refused, allowed]
    families = [step for family in _FAMILIES for step in ((_EQUAL, 0, 1, int(family)), allowed)]
    steps += [(_EQUAL, 0, len(families) + 2, _SOCKET[place]), (_LOAD, 0, 0, _AT_ARGUMENTS), *families, refused]
    return _bytes([*steps, allowed])


def loaded() -> tuple[SockFprog, object]:
    """The filter of this machine, and what must live until the kernel has read it."""
    steps = program(os.uname().machine)
    buffer = ctypes.create_string_buffer(steps, len(steps))
    return SockFprog(len(steps) // _STEP.size, ctypes.addressof(buffer)), buffer


def _error(number: int) -> int:
    return 0x00050000 | number


def _bytes(steps: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(_STEP.pack(*step) for step in steps)
