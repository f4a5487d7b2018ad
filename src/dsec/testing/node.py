"""A private node for tests: its own name, root and port, and a look at what it holds."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dsec.client.client import DSecClient
from dsec.node.down import down
from dsec.node.keeper_client import KeeperControl, ServiceState
from dsec.node.leaks import cgroup_processes, find_leaks, node_cgroups
from dsec.node.local_calls import EdgeCalls, RuntimeCalls
from dsec.node.paths import NodePaths
from dsec.node.restart import restart
from dsec.node.up import UpOptions, up

__all__ = ["RunningNode", "private_node", "wait_until"]

_POLL_S = 0.01


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds; AssertionError naming ``what`` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(_POLL_S)


class RunningNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is up."""

    paths: NodePaths
    url: str
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes a child process's ``dsec`` find this node, and no other."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSEC_")}
        return inherited | {"DSEC_NODE": self.paths.name, "DSEC_ROOT": str(self.paths.root)}

    def client(self, **options: Any) -> DSecClient:
        """A client of this node."""
        return DSecClient(self.url, self.token, **options)

    def services(self) -> dict[str, ServiceState]:
        """The keeper's view of the node's parts."""
        with KeeperControl(self.paths.keeper_socket) as keeper:
            return {service.name: service for service in keeper.services()}

    def restart(self, *parts: str) -> None:
        """``dsec restart``."""
        restart(self.paths, parts)

    def kill(self, part: str) -> None:
        """SIGKILL a part (``keeper`` too) and return when it is gone."""
        if part == "keeper":
            with KeeperControl(self.paths.keeper_socket) as keeper:
                pid = keeper.pid
        else:
            pid = self.services()[part].pid
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], 10)[0]:
                raise AssertionError(f"{part} survived SIGKILL")
        finally:
            os.close(handle)

    def live_sandboxes(self) -> list[str]:
        """IDs of the sandboxes that the runtime holds, ended ones that the edge has not yet committed included."""
        with RuntimeCalls(self.paths.runtime_socket) as runtime:
            return [str(one["sandbox_id"]) for one in runtime.call("sandbox.list", {})["sandboxes"]]

    def held(self) -> list[str]:
        """IDs of what the keeper holds for the runtime: ``sb/…`` of a sandbox, ``ex/…`` and ``in/…`` of an exec."""
        with KeeperControl(self.paths.keeper_socket) as keeper:
            return [each for each in keeper.objects() if each != "layers-ns" and not each.startswith("holder/")]

    def subvolumes(self) -> list[str]:
        """Names in the pool, as the runtime's own threads see it."""
        pid = self.services()["runtime"].pid
        pool = self.paths.run.relative_to("/") / "pool" / "fs"
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().startswith("objects"):
                return sorted(each.name for each in (task / "root" / pool).iterdir())
        raise AssertionError("the runtime has no thread for objects")

    def stats(self) -> dict[str, Any]:
        """The runtime's NodeStats."""
        with RuntimeCalls(self.paths.runtime_socket) as runtime:
            return runtime.call("stats", {})

    def sandbox_processes(self) -> set[int]:
        """PIDs in the node's cgroups: everything that sandboxes and tools run."""
        return {pid for cgroup in node_cgroups(self.paths) for pid in cgroup_processes(cgroup)} - self._own_pids()

    def leftovers(self) -> list[str]:
        """What a test left behind on the node: sandboxes, execs, slots in use, processes. Empty is clean."""
        stats = self.stats()
        found = [f"sandbox {name}" for name in self.live_sandboxes()]
        found += [f"process {pid}" for pid in sorted(self.sandbox_processes())]
        held = self.held()
        found += [f"object {name}" for name in held if not name.startswith(("disk/", "job/"))]
        found += [f"subvolume {name}" for name in self.subvolumes() if f"disk/{name}" not in held]
        found += [f"{stats[name]} {name}" for name in ("sandboxes", "execs", "slots_used") if stats[name]]
        return found

    def stop_all(self) -> None:
        """End every sandbox, whosever it is."""
        edge = EdgeCalls(self.paths.edge_socket)
        for sandbox in edge.call("GET", "/v1/sandboxes")["sandboxes"]:
            if sandbox["state"] in ("creating", "running", "paused"):
                edge.call("POST", f"/v1/sandboxes/{sandbox['id']}/stop", {})

    def _own_pids(self) -> set[int]:
        return {service.pid for service in self.services().values()}


@contextmanager
def private_node(shared_layers: Path | None, *, settings: str = "", **options: Any) -> Iterator[RunningNode]:
    """A node under a short temporary root; down, with an empty leak check, at the end.

    ``settings`` is the text of its TOML, ``options`` are fields of UpOptions.
    """
    root = Path(tempfile.mkdtemp(prefix="dsec-", dir="/tmp"))
    paths = NodePaths(f"t{secrets.token_hex(4)}", root)
    paths.settings.parent.mkdir(parents=True)
    shared = f"shared_layers = {str(shared_layers)!r}\n" if shared_layers else ""
    paths.settings.write_text(f"build_default_image = false\npool_mib = 2048\nport = 0\n{shared}{settings}")
    try:
        report = up(UpOptions(paths=paths, **options))
        yield RunningNode(paths=paths, url=report.url, token=paths.token.read_text().strip())
    except BaseException:
        _keep_logs(paths)
        raise
    finally:
        down(paths, confirm=lambda _: True)
        leaks = find_leaks(paths)
        shutil.rmtree(root, ignore_errors=True)
        assert leaks == [], f"the node left {leaks}"


def _keep_logs(paths: NodePaths) -> None:
    """A failed test's only witnesses: the ends of the logs, on standard error."""
    for log in sorted(paths.logs.glob("*.log")) if paths.logs.is_dir() else []:
        tail = log.read_text(errors="replace")[-4000:]
        sys.stderr.write(f"--- {log.name}\n{tail}\n")
