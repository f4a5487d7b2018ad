"""One reader of an exec's output, over whatever connections it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from dsec.api.frames import STDERR, STDOUT, Kind, until_frame
from dsec.client.ends import ExecEnd
from dsec.client.lane import LANE_WINDOW, Pace
from dsec.client.link import Link
from dsec.client.results import Exited, Gap, Stderr, Stdout
from dsec.client.running import RECONNECT_S
from dsec.client.streams import WINDOW, Flowing
from dsec.client.waiting import Patience
from dsec.client.wire import Lost
from dsec.errors import NodeError, error_from_wire

__all__ = ["Event", "Following"]

Event = Stdout | Stderr | Gap | Exited
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


class Following:
    """Attached on the WebSocket; for as long as the output comes fast, on a lane. ``events`` once."""

    def __init__(
        self, link: Callable[[], Link], sandbox_id: str, exec_id: str, offsets: tuple[int, int], max_output_bytes: int
    ) -> None:
        self._link = link
        self._sandbox_id = sandbox_id
        self._exec_id = exec_id
        self._at = dict(zip((STDOUT, STDERR), offsets, strict=True))
        self._max_output_bytes = max_output_bytes
        self._heavy = False

    async def events(self) -> AsyncGenerator[Event]:
        """Output from the offsets on, in exact bytes, then Exited. Raises SandboxGone, OutcomeUnknown, NodeError."""
        patience = Patience(RECONNECT_S)
        event: Event | None = None
        while not isinstance(event, Exited):
            source = self._by_lane() if self._heavy else self._by_socket()
            self._heavy = False
            try:
                async with aclosing(source) as events:
                    async for event in events:
                        patience.answered()
                        yield event
            except NodeError as error:
                await patience.before_retry(error)

    async def _by_socket(self) -> AsyncGenerator[Event]:
        """Until the end, or until it comes so fast that it deserves a lane."""
        link = self._link()
        wire = await link.wire()
        receiver = Flowing()
        credit = {channel: offset + WINDOW for channel, offset in self._at.items()}
        params = {
            "sandbox_id": self._sandbox_id, "exec_id": self._exec_id, "mode": "stream", "offsets": dict(self._at),
            "credit": dict(credit), "max_output_bytes": self._max_output_bytes,
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        pace = Pace(loop.time())
        number = await wire.open(receiver, "attach", params)
        try:
            while not self._heavy:
                frame = await receiver.next()
                if frame[1] == Kind.END:
                    yield ExecEnd.of(frame[2]).event()
                    return
                if frame[1] == Kind.ERROR:
                    raise error_from_wire(frame[2])
                event = self._event(frame)
                if event is None:
                    continue
                yield event
                if isinstance(event, Stdout | Stderr):
                    self._heavy = pace.is_heavy(len(event.data), loop.time()) and link.has_lanes()
                for channel, offset in self._due(credit, WINDOW, WINDOW // 2):
                    await wire.send(until_frame(number, channel, offset))
        finally:
            await wire.close_stream(number)

    async def _by_lane(self) -> AsyncGenerator[Event]:
        """Until it ends, for whatever reason: the WebSocket tells what there is to tell."""
        receiver = Flowing()
        credit = {channel: offset + LANE_WINDOW for channel, offset in self._at.items()}
        async with self._link().lane(self._sandbox_id, self._exec_id, dict(self._at), receiver) as lane:
            if lane is None:
                return
            while True:
                try:
                    frame = await receiver.next()
                except Lost:
                    return
                if frame[1] in (Kind.END, Kind.ERROR):
                    return
                event = self._event(frame)
                if event is None:
                    continue
                yield event
                for channel, offset in self._due(credit, LANE_WINDOW, LANE_WINDOW * 3 // 4):
                    lane.grant(channel, offset)

    def _event(self, frame: list[Any]) -> Event | None:
        """What a frame means to the reader, who is then behind it."""
        if frame[1] == Kind.DATA and frame[4]:
            channel, offset, data = frame[2], frame[3], frame[4]
            self._at[channel] = offset + len(data)
            return Stdout(data, offset) if channel == STDOUT else Stderr(data, offset)
        if frame[1] == Kind.ITEM and "gap" in frame[2]:
            gap = frame[2]
            self._at[gap["gap"]] = gap["to"]
            return Gap(_NAMES[gap["gap"]], gap["from"], gap["to"])
        return None

    def _due(self, credit: dict[int, int], window: int, left: int) -> list[tuple[int, int]]:
        """Channels of which no more than ``left`` of their credit is left, and the new credit."""
        due = [channel for channel, offset in self._at.items() if credit[channel] - offset <= left]
        for channel in due:
            credit[channel] = self._at[channel] + window
        return [(channel, credit[channel]) for channel in due]
