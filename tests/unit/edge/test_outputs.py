"""Lanes: what is asked of the runtime, what is refused, and that nothing but output passes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsec.api import frames, ids
from dsec.api.frames import Kind
from dsec.edge.outputs import LANE_WINDOW, output_params
from dsec.errors import DSecError, InvalidArgument, NotFound
from dsec.testing.edge_world import Api, World, caller_headers

pytestmark = pytest.mark.anyio


async def _exec(api: Api, *argv: bytes) -> tuple[str, str]:
    """A sandbox and an exec in it, which has ended."""
    sandbox: str = (await api.create())["id"]
    async with api.socket() as socket:
        end, _, _ = await socket.run(sandbox, *argv)
    return sandbox, end["exec_id"]


async def test_a_request_is_completed(world: World) -> None:
    """Offsets are what was said, the first credit is the window."""
    async with world.edge() as (edge, api):
        sandbox, exec_id = await _exec(api, b"echo", b"x")
        found = output_params(edge.core, f"/v1/sandboxes/{sandbox}/execs/{exec_id}/output?stdout=7")
        assert found == (
            "exec.output",
            {
                "sandbox_id": sandbox,
                "exec_id": exec_id,
                "offsets": {1: 7, 2: 0},
                "credit": {1: 7 + LANE_WINDOW, 2: LANE_WINDOW},
            },
        )
        assert output_params(edge.core, f"/v1/sandboxes/{sandbox}/transfer?direction=upload") is None


@pytest.mark.parametrize(
    ("query", "error"), [("stdout=-1", InvalidArgument), ("stdout=x", InvalidArgument), ("key=1", InvalidArgument)]
)
async def test_bad_requests(world: World, query: str, error: type[DSecError]) -> None:
    """Refused before anything is asked of the runtime; so is an exec or a sandbox that is not known."""
    async with world.edge() as (edge, api):
        sandbox, exec_id = await _exec(api, b"echo", b"x")
        with pytest.raises(error):
            output_params(edge.core, f"/v1/sandboxes/{sandbox}/execs/{exec_id}/output?{query}")
        other = ids.exec_id(sandbox, "another")
        with pytest.raises(NotFound):
            output_params(edge.core, f"/v1/sandboxes/{sandbox}/execs/{other}/output")
        with pytest.raises(NotFound):
            output_params(edge.core, f"/v1/sandboxes/none/execs/{exec_id}/output")


async def test_output_comes_and_no_end_is_told(world: World) -> None:
    """On the lane the bytes come from the offset on, and an ``end`` that says nothing of how the exec ended."""
    async with world.edge() as (_, api):
        sandbox, exec_id = await _exec(api, b"bytes", b"1000000")
        reader, writer = await asyncio.open_unix_connection(str(world.config.paths.edge_socket))
        asked = f"GET /v1/sandboxes/{sandbox}/execs/{exec_id}/output?stdout=5 HTTP/1.1\r\nhost: edge\r\n"
        asked += "".join(f"{name}: {value}\r\n" for name, value in caller_headers().items())
        writer.write(asked.encode() + b"connection: Upgrade\r\nupgrade: dsec-transfer\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        output, end = bytearray(), None
        while end is None:
            frame = await _frame(reader)
            if frame[1] == Kind.DATA:
                assert frame[2:4] == [1, 5 + len(output)]
                output += frame[4]
            elif frame[1] == Kind.END:
                end = frame[2]
        assert end == {}
        assert output == bytes(i % 251 for i in range(1_000_000))[5:]
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> list[Any]:
    length = int.from_bytes(await reader.readexactly(4), "big")
    return frames.decode(await reader.readexactly(length))
