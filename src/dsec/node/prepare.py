"""What a node's processes find when they start: directories, the first token, configuration files."""

from __future__ import annotations

import contextlib
import grp
import os
import shutil
from pathlib import Path

import msgspec

from dsec.api.trust import server_context
from dsec.errors import InvalidArgument, NodeError
from dsec.iam.first import ensure_first_token
from dsec.node.binaries import Binaries
from dsec.node.certificate import ensure_certificate, fingerprint
from dsec.node.config import NodeConfig, save_config
from dsec.node.fetching import write_fetcher_json
from dsec.node.services import fetcher_uid, proxy_uid, runtime_config

__all__ = ["boot_id", "group_id", "note_node", "prepare"]

_MIB = 1 << 20
_LARGEST_POOL_MIB = 64 * 1024
_SMALLEST_POOL_MIB = 512


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def group_id(name: str) -> int:
    """The group's ID; raises InvalidArgument."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InvalidArgument(f"no such group: {name!r}", remedy=f"Create it with `groupadd {name}`") from None


def prepare(config: NodeConfig, binaries: Binaries) -> None:
    """Directories, token, and the files that the node's processes read."""
    paths = config.paths
    for directory, mode in ((paths.run, 0o711), (paths.data, 0o711)):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.chmod(mode)
    for directory in (paths.layers, paths.output, paths.logs):
        directory.mkdir(mode=0o700, exist_ok=True)
    for path in (paths.node_db, paths.catalogue_db):
        _only_roots(path)
    if config.fault_points:
        _prepare_faults(config)
    if config.shared_layers and not (Path(config.shared_layers) / "layers").is_dir():
        raise InvalidArgument(
            f"shared_layers: {config.shared_layers} holds no layers", remedy="Name the data directory of a node"
        )
    ensure_certificate(config)
    if config.has_tls:
        server_context(*config.tls_files)
    ensure_first_token(paths.iam_db, paths.token, group=config.group)
    save_config(config)
    pool_mib = config.pool_mib or _default_pool_mib(paths.data)
    runtime = runtime_config(config, binaries, pool_mib=pool_mib)
    paths.runtime_json.write_bytes(msgspec.json.format(msgspec.json.encode(runtime)))
    write_fetcher_json(config)


def _only_roots(database: Path) -> None:
    """Before SQLite makes it, which makes what lies beside it with its mode; of an earlier dsec, what there is."""
    database.touch(mode=0o600)
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            database.with_name(database.name + suffix).chmod(0o600)


def _prepare_faults(config: NodeConfig) -> None:
    """Where points are armed. What proxy and fetcher might arm by themselves is their own death alone."""
    paths = config.paths
    own = {paths.faults: 0, paths.proxy_faults: proxy_uid(config), paths.fetcher_faults: fetcher_uid(config)}
    for directory, uid in own.items():
        for each in (directory, directory / "armed", directory / "passed"):
            each.mkdir(mode=0o700, exist_ok=True)
            os.chown(each, uid, uid)


def _default_pool_mib(data: Path) -> int:
    half = shutil.disk_usage(data).free // 2 // _MIB
    if half < _SMALLEST_POOL_MIB:
        raise NodeError(
            f"{data} has {half * 2} MiB free: too little for a pool of sandbox disks",
            remedy=f"Free at least {2 * _SMALLEST_POOL_MIB} MiB, or put the node elsewhere with --root",
        )
    return min(half, _LARGEST_POOL_MIB)


def note_node(config: NodeConfig, url: str) -> None:
    """Write ``node.json``, by which this machine's clients find the node."""
    paths = config.paths
    note = {"node": config.node, "url": url, "token_path": str(paths.token)}
    shown = fingerprint(config)
    if shown is not None:
        note["trust"] = shown
    partial = paths.node_json.with_suffix(".new")
    partial.write_bytes(msgspec.json.encode(note))
    _admit_group(config, partial)
    partial.replace(paths.node_json)


def _admit_group(config: NodeConfig, path: Path) -> None:
    """Mode 0600, or 0640 for the group that may use the node."""
    if config.group is None:
        path.chmod(0o600)
        return
    os.chown(path, 0, group_id(config.group))
    path.chmod(0o640)
