"""The kernel's dangerous corners, tried from inside a sandbox as its root and as a normal user."""

from __future__ import annotations

import pytest

import dsec

from .inside import USERS, attempts
from .kernel_attacks import (
    CALLING_CONVENTIONS,
    DEVICES,
    IOCTLS,
    KERNEL_INTERFACES,
    MOUNTS,
    NAMESPACES,
    NETWORK_CONFIGURATION,
    SECRETS,
    SETTINGS,
    SOCKETS,
)

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.parametrize("user", USERS)]

REFUSED = {"EPERM", "EACCES", "ENOSYS", "EROFS", "EPROTONOSUPPORT"}


def all_refused(found: dict[str, object], *, allowed: frozenset[str] = frozenset()) -> None:
    """Every attempt was stopped by a refusal (or by one of the errnos allowed besides)."""
    gone_through = {name: result for name, result in found.items() if result not in REFUSED | allowed}
    assert gone_through == {}


async def test_mounts(sandbox: dsec.Sandbox, user: str) -> None:
    """Mounting, unmounting, remounting, moving the root, the new mount calls and a cgroup hierarchy."""
    # The filter refuses the calls; without it, CAP_SYS_ADMIN would be missing.
    found = await attempts(sandbox, MOUNTS, user)
    all_refused(found)


async def test_namespaces(sandbox: dsec.Sandbox, user: str) -> None:
    """New namespaces of every kind (time as well), by unshare, clone and clone3, and joining ones that exist."""
    # User namespaces: the filter (unshare and clone by their flags, clone3 as a whole). The others: no CAP_SYS_ADMIN.
    found = await attempts(sandbox, NAMESPACES, user)
    assert found.pop("time offsets") in REFUSED | {"EINVAL", "ESRCH", "written"}  # buffered: it fails at the close
    all_refused(found)


async def test_devices(sandbox: dsec.Sandbox, user: str) -> None:
    """Making device nodes on every writable filesystem, whiteouts among them, and replacing the nodes in /dev."""
    # A user namespace has no right to device nodes; CAP_MKNOD is dropped besides; /dev is read-only.
    found = await attempts(sandbox, DEVICES, user)
    assert found.pop("open null") == "ENOENT"
    all_refused(found)


async def test_kernel_interfaces(sandbox: dsec.Sandbox, user: str) -> None:
    """bpf, perf, io_uring, userfaultfd, keys, modules, kexec, reboot, swap, clocks, handles, quotas, kernel log, …"""
    # The filter: refused by name, or unknown to the list of what programs need.
    found = await attempts(sandbox, KERNEL_INTERFACES, user)
    all_refused(found)


async def test_refusals_say_eperm(sandbox: dsec.Sandbox, user: str) -> None:
    """What is refused by name says EPERM, as programs expect, and what is unknown says ENOSYS, as they expect too."""
    found = await attempts(
        sandbox,
        'attempt("mount", call, 165, b"none", b"/mnt", b"tmpfs", 0, 0)\nattempt("clone3", call, 435, buffer, 88)',
        user,
    )
    assert found == {"mount": "EPERM", "clone3": "ENOSYS"}


async def test_other_calling_conventions(sandbox: dsec.Sandbox, user: str) -> None:
    """x32 numbers, and 32-bit calls by int 0x80, do not get round the filter."""
    # x32 numbers are on no list; another architecture than the filter's own kills.
    found = await attempts(sandbox, CALLING_CONVENTIONS, user)
    killed = {name: found.pop(name) & 0x7F for name in list(found) if name.startswith("int80")}
    assert set(killed.values()) == {31}, killed  # SIGSYS
    all_refused(found)


async def test_sockets(sandbox: dsec.Sandbox, user: str) -> None:
    """Sockets of every odd family, raw and packet sockets, those that load modules, the kernel's device events."""
    # The filter lets through unix, IPv4, IPv6 and two netlink protocols; raw ones need CAP_NET_RAW, which nobody has.
    found = await attempts(sandbox, SOCKETS, user)
    all_refused(found)


async def test_network_configuration(sandbox: dsec.Sandbox, user: str) -> None:
    """Addresses, routes, flags of lo, new links and firewall rules stay as they are."""
    # The network namespace belongs to the initial user namespace: nobody inside has CAP_NET_ADMIN over it.
    found = await attempts(sandbox, NETWORK_CONFIGURATION, user)
    all_refused(found, allowed=frozenset({"ENOENT"}))


async def test_settings(sandbox: dsec.Sandbox, user: str) -> None:
    """Writes to /proc/sys, /proc/sysrq-trigger, /sys and the like; the files of the caller itself too."""
    # Read-only mounts, and owners that are not mapped: a sandbox's root is nobody there.
    found = await attempts(sandbox, SETTINGS, user)
    all_refused(found, allowed=frozenset({"ENOENT", "EINVAL"}))


async def test_secrets_of_the_kernel(sandbox: dsec.Sandbox, user: str) -> None:
    """Memory, symbols, page flags, log, keys and timers give nothing; no path of the host shows in /sys and /proc."""
    # Masked by /dev/null and empty directories, by owners that are not mapped, or not there at all.
    found = await attempts(sandbox, SECRETS, user)
    all_refused(found, allowed=frozenset({0, "ENOENT"}))  # type: ignore[arg-type]


async def test_ioctls(sandbox: dsec.Sandbox, user: str) -> None:
    """Pushing input into a terminal; the pool's own ioctls by the node's files in /etc: snapshots, quotas, sync."""
    # The filter refuses TIOCSTI, TIOCLINUX and whatever is btrfs's; the overlay passes none of the rest on.
    found = await attempts(sandbox, IOCTLS, user)
    all_refused(found, allowed=frozenset({"ENOTTY"}))
