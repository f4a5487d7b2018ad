"""``dsec down``: every sandbox stopped with confirmation, every process ended, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from dsec.errors import Conflict, DSecError, NodeError
from dsec.node.id_block import claim_block, release_block
from dsec.node.keeper_client import KeeperControl
from dsec.node.leaks import find_leaks
from dsec.node.local_calls import EdgeCalls, RuntimeCalls
from dsec.node.machine import check_machine
from dsec.node.paths import NodePaths
from dsec.node.survey import is_locked, operation
from dsec.node.sweep import sweep

__all__ = ["DownReport", "down"]

_STOPS_AT_ONCE = 16
_POLL_S = 0.02


class DownReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the node was and what was stopped."""

    node: str
    was_up: bool
    stopped: int
    took_s: float


def down(
    paths: NodePaths,
    *,
    confirm: Callable[[int], bool] = lambda _: False,
    say: Callable[[str], None] = lambda _: None,
    timeout_s: float = 120.0,
) -> DownReport:
    """Take the node down; returns only after an empty leak check. A node that is not up is swept, which is no error.

    ``confirm(n)`` is asked once when ``n`` > 0 sandboxes live; False raises Conflict and leaves the node as it was.
    Raises NodeError naming what is left when something resists.
    """
    check_machine(action="dsec down")
    paths.checked()
    began = time.monotonic()
    deadline = began + timeout_s
    with operation(paths):
        claim_block(paths)  # refuses while a live node of the same name has another place: its cgroups are not ours
        was_up = is_locked(paths.lock)
        stopped = 0
        if was_up:
            stopped = _stop_sandboxes(paths, confirm, say, deadline)
            _end_parts(paths, say, deadline)
        sweep(paths)
        release_block(paths)
        left = find_leaks(paths)
    if left:
        raise NodeError(
            f"node {paths.name!r} left {len(left)} things behind: {'; '.join(map(str, left[:5]))}",
            remedy="Run `dsec down` again",
            leaks=[str(leak) for leak in left],
        )
    return DownReport(node=paths.name, was_up=was_up, stopped=stopped, took_s=time.monotonic() - began)


def _stop_sandboxes(
    paths: NodePaths, confirm: Callable[[int], bool], say: Callable[[str], None], deadline: float
) -> int:
    """Refuse new ones, then stop all, creates under way included. An edge that is dead is bypassed."""
    edge = EdgeCalls(paths.edge_socket)
    paths.draining.touch()
    try:
        live = _live(edge)
        if live and not confirm(len(live)):
            raise Conflict(f"node {paths.name!r} has live sandboxes: {len(live)}", remedy="Say `--yes` to stop them")
    except NodeError as error:
        say(f"the edge does not answer ({error.message}): stopping sandboxes through the runtime")
        return 0
    except BaseException:
        paths.draining.unlink(missing_ok=True)
        raise
    stopped: set[str] = set()
    while live and time.monotonic() < deadline:
        say(f"stopping live sandboxes: {len(live)}")
        with ThreadPoolExecutor(_STOPS_AT_ONCE) as pool:
            stopped.update(name for name in pool.map(lambda one: _stop(edge, one), live) if name)
        time.sleep(_POLL_S)
        live = _live(edge)
    return len(stopped)


def _live(edge: EdgeCalls) -> list[dict[str, Any]]:
    answer = edge.call("GET", "/v1/sandboxes")
    return [one for one in answer["sandboxes"] if one["state"] in ("creating", "running", "paused")]


def _stop(edge: EdgeCalls, sandbox: dict[str, Any]) -> str | None:
    """The ID of what was stopped, None when it has to be tried again."""
    try:
        edge.call("POST", f"/v1/sandboxes/{sandbox['id']}/stop", {})
    except DSecError:  # ended meanwhile, or still being made: the next round's list says which
        return None
    return str(sandbox["id"])


def _end_parts(paths: NodePaths, say: Callable[[str], None], deadline: float) -> None:
    """Runtime's objects, then the processes. What fails here the sweep does by force."""
    try:
        with RuntimeCalls(paths.runtime_socket) as runtime:
            for one in runtime.call("sandbox.list", {})["sandboxes"]:
                if one["state"] == "running":
                    end = {"sandbox_id": one["sandbox_id"], "cause": "stopped", "actor": "node", "grace_ms": 0}
                    runtime.call("sandbox.stop", end)
            runtime.call("shutdown", {})
        with KeeperControl(paths.keeper_socket, timeout_s=30) as keeper:
            keeper.shutdown()
            keeper.wait_closed(max(0.1, deadline - time.monotonic()))
    except DSecError as error:
        say(f"ending the node by force: {error.message}")
        return
    while is_locked(paths.lock) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
