"""How a client ends or signals an exec: on the WebSocket if it is open, else by a request of its own."""

from __future__ import annotations

import asyncio
import signal as signals
from typing import Any

from dsec.api.types import KillRequest
from dsec.client.link import Link
from dsec.client.waiting import Patience
from dsec.errors import NodeError, OutcomeUnknown, Unsupported

__all__ = ["kill_exec"]

_PATIENCE_S = 30.0
_CONFIRMED_S = 65.0
"""Beyond the grace, how long a kill is waited for: longer than the edge waits for the runtime."""
_HARMLESS_TWICE = frozenset({None, signals.SIGKILL, signals.SIGSTOP, signals.SIGCONT})


async def kill_exec(link: Link, sandbox_id: str, exec_id: str, *, signal: int | None, grace_s: float) -> None:
    """Send ``signal``, or (None) SIGTERM and after ``grace_s`` kill everything; returns when it is confirmed.

    Asked again while the node does not answer; a signal that a program may count is not sent twice. Thousands at once
    share the one connection. Raises NotFound, SandboxGone, InvalidArgument, NodeError, and OutcomeUnknown when the
    connection broke over such a signal.
    """
    patience = Patience(_PATIENCE_S)
    while True:
        try:
            await _ask(link, sandbox_id, exec_id, signal, grace_s)
            return
        except NodeError as error:
            if signal not in _HARMLESS_TWICE and not error.details.get("refused"):
                raise OutcomeUnknown(
                    f"the connection broke: whether signal {signal} was sent is not known ({error.message})",
                    sandbox_id=sandbox_id, exec_id=exec_id,
                ) from None  # fmt: skip
            await patience.before_retry(error)


async def _ask(link: Link, sandbox_id: str, exec_id: str, signal: int | None, grace_s: float) -> None:
    wire = link.open_wire()
    if wire is not None:
        named = {"sandbox_id": sandbox_id, "exec_id": exec_id}
        try:
            async with asyncio.timeout(grace_s + _CONFIRMED_S):
                await wire.call("kill", named | {"signal": signal, "grace_s": grace_s})
            return
        except TimeoutError:
            raise NodeError("the node does not confirm that the exec is killed", phase="runtime") from None
        except Unsupported:
            pass  # a server of the release before has the route only
    path = f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/kill"
    await link.ask("POST", path, dict[str, Any], body=KillRequest(signal=signal, grace_s=grace_s))
