"""What the programs of a sandbox have said, also after its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dsec.api.frames import STDERR, STDOUT, Kind, until_frame
from dsec.client.results import ExecStarted, Gap, Stderr, Stdout
from dsec.client.running import RECONNECT_S
from dsec.client.streams import WINDOW, Flowing
from dsec.client.waiting import Patience
from dsec.errors import NodeError, SandboxGone, error_from_wire

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["LogEvent", "read_logs"]

LogEvent = ExecStarted | Stdout | Stderr | Gap
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


async def read_logs(sandbox: Sandbox, *, follow: bool, exec_id: str | None) -> AsyncGenerator[LogEvent]:
    """Events of ``logs``; after a lost connection it begins again and leaves out what was already given."""
    given: dict[tuple[str, int], int] = {}
    patience = Patience(RECONNECT_S)
    while True:
        try:
            async with aclosing(_once(sandbox, follow, exec_id, given)) as events:
                async for event in events:
                    patience.answered()
                    yield event
            return
        except NodeError as error:
            await patience.before_retry(error)


async def _once(
    sandbox: Sandbox, follow: bool, exec_id: str | None, given: dict[tuple[str, int], int]
) -> AsyncGenerator[LogEvent]:
    wire = await sandbox._link().wire()
    receiver = Flowing()
    params = {"sandbox_id": sandbox.id, "follow": follow, "exec_id": exec_id}
    number = await wire.open(receiver, "logs", params)
    current = ""
    try:
        while True:
            frame = await receiver.next()
            kind = frame[1]
            if kind == Kind.ITEM and "exec_id" in frame[2]:
                current = frame[2]["exec_id"]
                if (current, 0) not in given:
                    given[(current, 0)] = 0
                    yield _started(frame[2])
            elif kind == Kind.ITEM and "gap" in frame[2]:
                gap = frame[2]
                place = (current, gap["gap"])
                if gap["to"] > given.get(place, 0):
                    yield Gap(_NAMES[gap["gap"]], max(gap["from"], given.get(place, 0)), gap["to"])
                    given[place] = gap["to"]
            elif kind == Kind.DATA and frame[4]:
                event = _data(frame, given, current)
                if event is not None:
                    yield event
                await wire.send(until_frame(number, frame[2], frame[3] + len(frame[4]) + WINDOW))
            elif kind == Kind.END:
                return
            elif kind == Kind.ERROR:
                error = error_from_wire(frame[2])
                if isinstance(error, SandboxGone):
                    return
                raise error
    finally:
        await wire.close_stream(number)


def _started(item: dict[str, Any]) -> ExecStarted:
    argv = tuple(
        word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word) for word in item["argv"]
    )
    return ExecStarted(item["exec_id"], argv, item["started_at"])


def _data(frame: list[Any], given: dict[tuple[str, int], int], current: str) -> Stdout | Stderr | None:
    channel, offset, data = frame[2], frame[3], frame[4]
    done = given.get((current, channel), 0)
    if offset + len(data) <= done:
        return None
    if offset < done:
        data, offset = data[done - offset :], done
    given[(current, channel)] = offset + len(data)
    return Stdout(data, offset) if channel == STDOUT else Stderr(data, offset)
