"""Each attack goes through once its protection is gone: what stops it in the other tests is that, and nothing else.

The attacks are those of the other modules, on a node whose programs leave protections out. With all of them an attack
is stopped; without those that hold it, it goes through; and where there are several, any one of them stops it alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import dsec
from dsec.node.binaries import find_binaries
from dsec.testing.node import RunningNode

from . import kernel_attacks as kernel
from .inside import IMAGE, attempts, stopped
from .test_entering import INIT
from .test_profiles import KEPT_SHUT, REACHED_LESS
from .test_protected import CHANGES, FILE, PATHS
from .weakened import SOURCE, client, left_out, node

__all__ = ["client", "node"]

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(900)]


class Held(NamedTuple):
    """An attack, the protections that hold it, and which of its attempts are made: harmless ones."""

    name: str
    program: str
    by: tuple[str, ...]
    tried: tuple[str, ...]
    profile: str = "default"
    protected: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Attempts that must come first, and do."""


HELD = [
    Held("mounts", kernel.MOUNTS, ("seccomp", "capabilities"), ("tmpfs", "cgroup v2", "umount", "fsopen")),
    Held("user-namespaces", kernel.NAMESPACES, ("seccomp",), ("clone user and mnt", "clone user and net")),
    Held("other-namespaces", kernel.NAMESPACES, ("seccomp", "capabilities"), ("unshare uts", "clone net")),
    Held("devices", kernel.DEVICES, ("user_namespace", "capabilities"), ("/dev/shm null", "/dev/shm disk")),
    Held("devices-work", kernel.DEVICES, ("user_namespace", "capabilities", "nodev"), ("open null",),
         first=("/dev/shm null",)),
    Held("keys", kernel.KERNEL_INTERFACES, ("seccomp",), ("userfaultfd_user", "add_key", "keyctl", "mbind")),
    Held("host-name", kernel.KERNEL_INTERFACES, ("seccomp", "capabilities"), ("sethostname",)),
    Held("device-events", kernel.SOCKETS, ("seccomp",), ("uevent", "generic")),
    Held("network", kernel.NETWORK_CONFIGURATION, ("network_owner", "capabilities"), ("address",)),
    Held("settings", kernel.SETTINGS, ("read_only", "user_namespace"),
         ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches")),
    Held("masks", kernel.SECRETS, ("masks",),
         ("/proc/kallsyms", "/proc/interrupts", "/sys/devices/virtual/block")),
    Held("kernel-memory", kernel.SECRETS, ("masks", "user_namespace"), ("/proc/timer_list",)),
    Held("ioctls", kernel.IOCTLS, ("seccomp",), ("/etc/hosts fs_info", "/etc/hosts subvol_info", "no_cow")),
    Held("init-is-seen", INIT, ("hidepid",), ("mem", "maps")),
    Held("strict", REACHED_LESS, ("seccomp",), ("kcmp", "getfd"), profile="strict"),
    Held("nested", KEPT_SHUT, ("seccomp",), ("keyctl", "io_uring"), profile="nested"),
    Held("protected", CHANGES, ("protected",), (f"write {FILE}", "create", "mkdir"), protected=PATHS),
]  # fmt: skip


async def through(client: dsec.DSecClient, node: RunningNode, held: Held, *without: str) -> list[str]:
    """Which of the attempts go through in a sandbox made without these protections. A mask reads as nothing."""
    with left_out(node, *without):
        async with client.sandbox(IMAGE, memory_mib=256, profile=held.profile, protected=held.protected) as sandbox:
            found = await attempts(sandbox, held.program, only=(*held.first, *held.tried))
    masked = [0] if held.program is kernel.SECRETS else []
    return [name for name in held.tried if not stopped(found[name]) and found[name] not in masked]


@pytest.mark.parametrize("held", HELD, ids=[each.name for each in HELD])
async def test_held_by_that(client: dsec.DSecClient, node: RunningNode, held: Held) -> None:
    """Stopped with all protections, and with any one of them; without them it goes through."""
    assert await through(client, node, held) == []
    if len(held.by) > 1:
        for each in held.by:
            assert await through(client, node, held, *(other for other in held.by if other != each)) == [], each
    assert await through(client, node, held, *held.by) == list(held.tried)


def test_what_is_installed_cannot_be_weakened(node: RunningNode) -> None:
    """The programs of a release have neither the socket nor a word of it; the weakened ones have both.

    What a release may hold is the name of the crate's object file, which is empty.
    """
    word = re.compile(rb"weaken(?!\.[0-9a-f]+-cgu)")
    assert (node.paths.run / "weaken.sock").is_socket()
    programs = find_binaries()
    assert word.search(programs.runtime.read_bytes())
    released = programs.proxy.resolve().parent
    found = {name: word.search((released / f"dsec-{name}").read_bytes()) for name in programs.__struct_fields__}
    assert not any(found.values()), found


def test_all_are_left_out_once() -> None:
    """Every protection that can be left out is, by some test of these modules."""
    names = set(re.findall(r'^    "(\w+)",$', SOURCE.read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_weakened*.py"))
    assert names and {name for name in names if f'"{name}"' not in text} == set()
