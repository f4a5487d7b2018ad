"""Logs: of the main process or of all execs, live and of ended sandboxes."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.errors import NotFound
from dsec.testing.edge_world import Socket, World, failing, until

pytestmark = pytest.mark.anyio


async def logs(socket: Socket, **params: Any) -> tuple[list[str], bytes]:
    """(first words of the execs told, all bytes of standard output)."""
    stream = await socket.open("logs", **params)
    told, output = [], b""
    while True:
        frame = await socket.frame()
        assert frame[0] == stream
        if frame[1] == 6:
            told.append(frame[2]["argv"][0])
        elif frame[1] == 1:
            output += frame[4]
        elif frame[1] == 4:
            raise AssertionError(frame)
        else:
            return told, output


async def test_all_execs_in_order_of_their_start(world: World) -> None:
    """Without a main process, each exec is introduced and followed by its output, also after the end."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        for word in (b"one", b"two"):
            await socket.run(made["id"], b"echo", word)
        await failing(socket.run(made["id"], b"missing"))
        expected = (["echo", "echo", "missing"], b"one\ntwo\n")
        assert await logs(socket, sandbox_id=made["id"]) == expected
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        await until(lambda: made["id"] in world.runtime.forgotten)
        assert await logs(socket, sandbox_id=made["id"], follow=True) == expected


async def test_the_main_process_alone(world: World) -> None:
    """With one, only its output is told."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create(command=["main"])
        assert await logs(socket, sandbox_id=made["id"]) == (["echo"], b"main\n")


async def test_following_goes_on_until_the_end(world: World) -> None:
    """Execs that begin later are told too; the sandbox's end ends the stream."""
    async with world.edge() as (_, api), api.socket() as socket, api.socket() as other:
        made = await api.create()
        stream = await socket.open("logs", sandbox_id=made["id"], follow=True)
        await other.run(made["id"], b"echo", b"later")
        frames = [await socket.frame() for _ in range(2)]
        assert [frame[1] for frame in frames] == [6, 1]
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        end, _, _ = await socket.result(stream)
        assert end == {}


async def test_one_exec(world: World) -> None:
    """By its ID; an unknown one is NotFound."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        await socket.run(made["id"], b"echo", b"one")
        end, _, _ = await socket.run(made["id"], b"echo", b"two")
        assert await logs(socket, sandbox_id=made["id"], exec_id=end["exec_id"]) == (["echo"], b"two\n")
        stream = await socket.open("logs", sandbox_id=made["id"], exec_id="a" * 26)
        assert isinstance(await failing(socket.result(stream)), NotFound)
