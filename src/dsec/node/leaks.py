"""What of a node is on this machine: processes, cgroups, mounts, loop devices, runtime files.

``dsec down`` succeeds only when nothing is found; tests look after each module. Only looks, ends nothing (``sweep``).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dsec.node.paths import NodePaths

__all__ = ["Leak", "cgroup_processes", "find_leaks", "loop_devices", "node_cgroups", "node_mounts", "node_processes"]

_MODULES = ("dsec.edge", "dsec.apiserver")
_PROGRAMS = ("dsec-keeper", "dsec-runtime", "dsec-proxy", "dsec-holder", "dsec-fetcher")


class Leak(msgspec.Struct, frozen=True, order=True):
    """One thing that is left: its kind (process, cgroup, mount, loop, file) and what it is."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def find_leaks(paths: NodePaths) -> list[Leak]:
    """Everything of a node that should be gone once it is down, sorted."""
    found = [Leak("process", f"{pid} {' '.join(argv[:6])}") for pid, argv in node_processes(paths)]
    for cgroup in node_cgroups(paths):
        found.append(Leak("cgroup", str(cgroup)))
        found += [Leak("process", f"{pid} in {cgroup}") for pid in cgroup_processes(cgroup)]
    found += [Leak("mount", point) for point in node_mounts(paths)]
    found += [Leak("loop", str(device)) for device in loop_devices(paths)]
    found += [Leak("file", str(path)) for path in _runtime_files(paths)]
    return sorted(set(found))


def node_processes(paths: NodePaths) -> Iterator[tuple[int, list[str]]]:
    """(pid, argv) of the node's own processes: keeper, runtime, proxy, layer holder, fetcher, edge, apiserver.

    A process counts when its program and its configuration file are the node's and it runs in this user namespace, so
    that no program in a sandbox can pass for one. The keeper counts as the holder of the node's lock: once it has
    exec'ed itself in place, its arguments do not name the node any more. A child of the keeper's that had not come to
    its own program is known by the keeper's, wherever it was on its way to: nobody else may execute that file.
    """
    keeper = _lock_holder(paths.lock)
    if keeper is not None:
        yield keeper, _argv(Path(f"/proc/{keeper}"))
    files = {str(each) for each in (paths.config_json, paths.runtime_json, paths.proxy_json, paths.services_json)}
    files |= {str(paths.fetcher_json), str(paths.fetcher_socket)}
    program = _identity(paths.keeper_program)
    here = _user_namespace("self")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == str(keeper):
            continue
        argv = _argv(entry)
        service = files.intersection(argv) and _is_ours(argv) and _user_namespace(entry.name) == here
        if service or (program is not None and _identity(entry / "exe") == program):
            yield int(entry.name), argv


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # gone; or the link of a process without a program
        return None
    return found.st_dev, found.st_ino


def _lock_holder(lock: Path) -> int | None:
    try:
        found = lock.stat()
    except FileNotFoundError:
        return None
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5] == wanted and int(fields[4]) > 0:
            return int(fields[4])
    return None


def _is_ours(argv: list[str]) -> bool:
    if Path(argv[0]).name in _PROGRAMS:
        return True
    return any(flag == "-m" and module in _MODULES for flag, module in itertools.pairwise(argv))


def _argv(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _user_namespace(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/user").readlink())
    except OSError:
        return ""


def node_cgroups(paths: NodePaths) -> list[Path]:
    """The node's directory in each cgroup hierarchy that has one."""
    points = [fields[1] for fields in _mount_table() if fields[2] in ("cgroup", "cgroup2")]
    return [path for point in dict.fromkeys(points) if (path := Path(point) / paths.cgroup).is_dir()]


def cgroup_processes(cgroup: Path) -> set[int]:
    """PIDs in a cgroup and below it, as this PID namespace knows them."""
    pids: set[int] = set()
    for directory, _, _ in os.walk(cgroup):
        try:
            pids.update(int(line) for line in (Path(directory) / "cgroup.procs").read_text().split())
        except OSError:  # removed meanwhile, or a threaded group that has no list of processes
            continue
    return pids


def node_mounts(paths: NodePaths) -> list[str]:
    """Mount points of this mount namespace below the node's directories, deepest last."""
    below = (f"{paths.run}/", f"{paths.data}/")
    return [fields[1] for fields in _mount_table() if fields[1].startswith(below)]


def loop_devices(paths: NodePaths) -> list[Path]:
    """Loop devices over the node's pool image, deleted images included."""
    image = str(paths.pool_image)
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            name = backing.read_text().strip()
        except OSError:
            continue
        if name in (image, f"{image} (deleted)"):
            found.append(Path("/dev") / backing.parts[3])
    return found


def _runtime_files(paths: NodePaths) -> list[Path]:
    try:
        return [paths.run, *paths.run.iterdir()]
    except FileNotFoundError:
        return []


def _mount_table() -> list[list[str]]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [[field.encode().decode("unicode_escape") for field in line.split()] for line in lines]
