"""What the edge gives up once it has opened what it needs: root, programs, and all files but its own.

It goes on reading and making files as root does, of whoever they are, since layers lie in directories and stores of
others; where it may write is said to the kernel by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from dsec.edge.claimant import claimant_of
from dsec.node.config import NodeConfig
from dsec.node.landlock import confine_writes
from dsec.node.services import edge_uid
from dsec.node.unprivileged import become_user_with_files, refuse_syscalls
from dsec.stores.settings import DirectoryAddress, parse_address

__all__ = ["give_up_root", "own_places"]

_log = structlog.get_logger("dsec.edge")
_MACHINES = frozenset(map(Path, ("/", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/usr", "/var", "/var/lib")))
_PULLS = "pulls"
"""Of ``dsec.images``, beside its scratch directory."""


def give_up_root(config: NodeConfig) -> None:
    """For good, and for the threads to come. A runtime of an earlier dsec admits root alone, until its restart."""
    told = msgspec.json.decode(config.paths.runtime_json.read_bytes(), type=dict[str, object])
    if told.get("edge_uid") != edge_uid(config):
        _log.warning("the runtime is of an earlier dsec: `dsec restart` takes root from this part")
        return
    if config.stores:
        claimant_of(config)  # makes the file, which is nobody's to make afterwards
    (config.paths.data / _PULLS).mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = str(config.paths.data / "scratch")
    directories, files = own_places(config), list(_databases(config))
    become_user_with_files(edge_uid(config))
    if not confine_writes(directories, files):
        _log.warning("this kernel has no Landlock: the edge may write wherever root may")
    refuse_syscalls()


def own_places(config: NodeConfig) -> list[Path]:
    """The directories below which the edge writes."""
    paths = config.paths
    found = [paths.layers, paths.data / "scratch", paths.data / _PULLS, paths.faults]
    for store in config.stores.values():
        if not store.url.startswith("file:"):
            continue
        address = parse_address(store.url, environment={})
        if isinstance(address, DirectoryAddress):
            found += _of_store(address.path, paths.data)
    return found


def _of_store(directory: Path, own: Path) -> Iterator[Path]:
    """The directory, or what there is of the way to it; and what its mount is in, so that one that is lost and made
    anew is written to again. Neither if that holds what is ``own``, or the machine's.
    """
    place = next(each for each in (directory, *directory.parents) if _is_there(each))
    mount = max((each for each in _mounts() if place.is_relative_to(each)), key=lambda each: len(each.parts))
    for each in {place, mount.parent} - {Path("/")}:
        if each in _MACHINES or own.is_relative_to(each):
            _log.warning("stores are not written below it", store=str(directory), below=str(each))
        elif _is_there(each):
            yield each


def _is_there(path: Path) -> bool:
    """A store that is away (a FUSE mount without its program, a stale handle) keeps no edge from starting."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("a store does not answer: `dsec restart edge` once it does", store=str(path), error=str(error))
        return False
    return True


def _mounts() -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        yield Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split()[4])))


def _databases(config: NodeConfig) -> Iterator[Path]:
    """They are open, so what lies beside them is there and stays."""
    for database in (config.paths.node_db, config.paths.catalogue_db):
        for suffix in ("", "-wal", "-shm"):
            yield database.with_name(database.name + suffix)
