"""Starting the keeper, and understanding why it did not start."""

from __future__ import annotations

import subprocess

import msgspec

from dsec.errors import Conflict, NodeError
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.services import service_table

__all__ = ["start_keeper", "write_table"]

_LOCK_HELD = 4
_ADDRESS_IN_USE = 5


def write_table(config: NodeConfig, binaries: Binaries) -> None:
    """Write the table of services that the keeper reads at its start."""
    table = {"run_dir": str(config.paths.run), "services": service_table(config, binaries)}
    config.paths.services_json.write_bytes(msgspec.json.format(msgspec.json.encode(table)))


def start_keeper(config: NodeConfig, binaries: Binaries) -> None:
    """Start the keeper in a session of its own; returns once its sockets listen.

    Raises Conflict when another keeper has the node or another program the port, NodeError otherwise.
    """
    write_table(config, binaries)
    argv = [str(binaries.keeper), "--table", str(config.paths.services_json), "--detach"]
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
