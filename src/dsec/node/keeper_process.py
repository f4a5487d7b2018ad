"""Starting the keeper, and understanding why it did not start."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec

from dsec.errors import Conflict, NodeError
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.services import proxy_config, service_table

__all__ = ["private_keeper", "start_keeper", "write_proxy_json", "write_table"]

_LOCK_HELD = 4
_ADDRESS_IN_USE = 5


def write_table(config: NodeConfig, binaries: Binaries) -> None:
    """Write what the keeper reads at its start: the table of services."""
    table: dict[str, object] = {"run_dir": str(config.paths.run), "services": service_table(config, binaries)}
    if config.fault_points:
        table["fault_points"] = str(config.paths.faults)
    # The edge's environment may hold a store's credentials.
    _write(config.paths.services_json, table, 0o600)


def write_proxy_json(config: NodeConfig) -> None:
    """Write what the proxy reads at its start: whom it becomes, and whom it admits."""
    _write(config.paths.proxy_json, proxy_config(config), 0o644)


def _write(path: Path, said: object, mode: int) -> None:
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(said)))


def private_keeper(config: NodeConfig, binaries: Binaries) -> Path:
    """Copy the installed keeper to where only root may execute it, and return that place.

    Until its ``execve`` a process that enters a sandbox is the keeper's own program. A script in there which names
    /proc/self/exe as its interpreter would run it inside, where it could be read; its mode refuses that.
    """
    program = config.paths.keeper_program
    partial = program.with_suffix(".new")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o700)
    shutil.copyfile(binaries.keeper, partial)
    partial.replace(program)
    return program


def start_keeper(config: NodeConfig, binaries: Binaries) -> None:
    """Start the keeper in a session of its own; returns once its sockets listen.

    Raises Conflict when another keeper has the node or another program the port, NodeError otherwise.
    """
    write_table(config, binaries)
    write_proxy_json(config)
    argv = [str(private_keeper(config, binaries)), "--table", str(config.paths.services_json), "--detach"]
    started = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, cwd="/", check=False
    )
    if started.returncode == 0:
        return
    said = (started.stderr.strip() or started.stdout.strip() or "it said nothing").splitlines()[-1]
    if started.returncode == _LOCK_HELD:
        raise Conflict(f"node {config.node!r} is held by another keeper", remedy="Look with `dsec status`")
    if started.returncode == _ADDRESS_IN_USE:
        raise Conflict(
            f"{config.host}:{config.port} is in use: {said}",
            remedy="Choose another port with `--port` (0: a free one), or stop what listens there",
        )
    raise NodeError(f"the keeper did not start (exit code {started.returncode}): {said}")
