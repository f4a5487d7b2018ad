"""What the edge gives up once it has opened what it needs: root, programs, and all files but its own.

It goes on reading and making files as root does, of whoever they are, since layers lie in directories and stores of
others; where it may write is said to the kernel by name.
"""

from __future__ import annotations

import os
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
    scratch = str(config.paths.data / "scratch")
    os.environ.update(TMPDIR=scratch, SQLITE_TMPDIR=scratch)
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
            found += _of_store(address.path)
    return found


def _of_store(directory: Path) -> Iterator[Path]:
    """The directory; and what its mount is in, so that one that is lost and made anew is written to again."""
    place = directory
    while not place.exists():
        place = place.parent
    mount = place
    while not mount.is_mount():
        mount = mount.parent
    yield from {each for each in (place, mount.parent) if each != Path("/")}


def _databases(config: NodeConfig) -> Iterator[Path]:
    """They are open, so what lies beside them is there and stays."""
    for database in (config.paths.node_db, config.paths.catalogue_db):
        for suffix in ("", "-wal", "-shm"):
            yield database.with_name(database.name + suffix)
