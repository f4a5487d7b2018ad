"""The WebSocket: frames copied unchanged, output in constant memory, hostile clients cut off."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from dsec.api import frames
from dsec.api.frames import Kind
from dsec.errors import InvalidArgument, NotFound, Unsupported
from dsec.testing.edge_world import Socket, World, caller_headers, failing, until

pytestmark = pytest.mark.anyio


async def test_many_execs_at_once_on_one_socket(world: World) -> None:
    """Streams do not mix: each of 50 execs gets its own words back."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        streams = {
            await socket.open("exec", sandbox_id=made["id"], key=str(number), argv=[b"echo", str(number).encode()]):
            number
            for number in range(50)
        }  # fmt: skip
        words: dict[int, bytes] = {}
        over = 0
        while over < 50:
            frame = await socket.frame()
            if frame[1] == Kind.DATA:
                words[streams[frame[0]]] = frame[4]
            over += frame[1] == Kind.END
        assert words == {number: f"{number}\n".encode() for number in range(50)}


@pytest.mark.parametrize("word", [b"sleep", b"echo"])
async def test_the_beginning_is_told_before_all_else(world: World, word: bytes) -> None:
    """Also to a client that waits for the end only: at the latest a moment after, though the program runs on."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        credit = {1: 1 << 20, 2: 1 << 20}
        await socket.open("exec", sandbox_id=made["id"], key="e", argv=[word, b"x"], mode="collect", credit=credit)
        assert "started_at" in (await socket.frame())[2]
        if word == b"echo":
            kinds = [(await socket.frame())[1]]
            while kinds[-1] != Kind.END:
                kinds.append((await socket.frame())[1])
            assert Kind.DATA in kinds
            assert Kind.ITEM not in kinds


async def test_output_is_exact_however_large(world: World) -> None:
    """20 MB come back byte by byte, in chunks that credit allows."""
    size = 20_000_000
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        end, output, _ = await socket.run(made["id"], b"bytes", str(size).encode(), mode="stream")
        assert end["stdout_total"] == size
        assert output[1] == bytes(i % 251 for i in range(251)) * (size // 251) + bytes(range(size % 251))


async def test_without_credit_no_more_comes(world: World) -> None:
    """The server sends what was granted and waits; the next grant brings the rest."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open(
            "exec", sandbox_id=made["id"], key="e", argv=[b"bytes", b"1000"], mode="stream", credit={1: 400, 2: 0}
        )
        assert (await socket.frame())[1] == Kind.ITEM
        frame = await socket.frame()
        assert (frame[3], len(frame[4])) == (0, 400)
        await socket.ws.send_bytes(frames.until_frame(stream, 1, 1000))
        frame = await socket.frame()
        assert (frame[3], len(frame[4])) == (400, 600)


async def test_standard_input(world: World) -> None:
    """Bytes sent on channel 0 reach the program, and its end of input ends it."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"cat"], stdin=True, mode="collect")
        await socket.ws.send_bytes(frames.data_frame(stream, 0, 0, b"hello"))
        await socket.ws.send_bytes(frames.data_frame(stream, 0, 5, b""))
        output = b""
        while (frame := await socket.frame())[1] != Kind.END:
            if frame[1] == Kind.DATA:
                output += frame[4]
        assert output == b"hello"


async def test_closing_a_stream_ends_nothing(world: World) -> None:
    """The exec runs on and can be attached to."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"sleep"])
        await socket.frame()
        await socket.ws.send_bytes(frames.close_frame(stream))
        (exec_id,) = world.runtime.sandboxes[made["id"]].execs
        attached = await socket.open("attach", sandbox_id=made["id"], exec_id=exec_id)
        assert (await socket.frame())[:2] == [attached, Kind.ITEM]
        world.runtime.finish_exec(made["id"], exec_id)
        end, _, _ = await socket.result(attached)
        assert end["exit_code"] == 0


async def test_only_four_methods_are_open_to_clients(world: World) -> None:
    """The runtime's own methods cannot be reached through the socket."""
    async with world.edge() as (_, api), api.socket() as socket:
        for method in (
            "sandbox.create",
            "exec.start",
            "exec.kill",
            "shutdown",
            "tool.run",
            "file.read",
            "transfer.upload",
            "nonsense",
        ):
            stream = await socket.open(method)
            error = await failing(socket.result(stream))
            assert isinstance(error, Unsupported)
            assert method in error.message
    methods = {method for method, _ in world.runtime.calls}
    own = {"disk.list", "events", "sandbox.list", "snapshot.list", "tool.list", "hello", "net.told", "probe", "stats"}
    assert methods <= own


async def test_typed_errors_do_not_end_the_socket(world: World) -> None:
    """A bad exec and an unknown sandbox are answered on their streams; the next exec works."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open("exec", sandbox_id=made["id"], key="e", argv=[])
        assert isinstance(await failing(socket.result(stream)), InvalidArgument)
        stream = await socket.open("attach", sandbox_id="sb-test-" + "a" * 26, exec_id="a" * 26)
        assert isinstance(await failing(socket.result(stream)), NotFound)
        null = await socket.open("exec", sandbox_id=made["id"], key="x", argv=[b"echo", b"y\0"])
        assert isinstance(await failing(socket.result(null)), InvalidArgument)
        end, _, _ = await socket.run(made["id"], b"true")
        assert end["exit_code"] == 0


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00", b"\xc1\xc1\xc1", frames.end_frame(1, {}), b"\x92\x01\x00", frames.item_frame(1, {})],
)
async def test_a_broken_protocol_closes_the_socket(world: World, frame: bytes) -> None:
    """What is no frame, or none that a client sends, closes with 1002, and the edge lives on."""
    async with world.edge() as (_, api), api.socket() as socket:
        await socket.ws.send_bytes(frame)
        with pytest.raises(ConnectionError, match="1002"):
            await socket.frame()
        assert (await api.create())["state"] == "running"


async def test_a_stream_number_in_use_closes_the_socket(world: World) -> None:
    """Two opens with one number cannot be told apart."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"sleep"])
        socket.next = 1
        await socket.open("exec", sandbox_id=made["id"], key="f", argv=[b"sleep"])
        with pytest.raises(ConnectionError, match="1002"):
            while True:
                await socket.frame()


async def test_text_is_not_read(world: World) -> None:
    """The socket speaks binary frames only."""
    async with world.edge() as (_, api), api.socket() as socket:
        await socket.ws.send_str("hello")
        with pytest.raises(ConnectionError, match="1003"):
            await socket.frame()


async def test_a_client_that_does_not_read_stops_the_copying(world: World) -> None:
    """With endless credit and no reader, what the edge holds stays small."""
    async with world.edge() as (edge, api):
        made = await api.create()
        async with api.session.ws_connect("http://edge/v1/ws", headers=caller_headers()) as ws:
            socket = Socket(ws)
            assert ws._conn is not None
            transport = ws._conn.transport
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            await socket.open(
                "exec", sandbox_id=made["id"], key="e", argv=[b"bytes", b"60000000"], mode="stream",
                credit={1: 1 << 30, 2: 1 << 30},
            )  # fmt: skip
            await until(lambda: len(edge.relays) == 1)
            (relay,) = edge.relays
            await until(lambda: relay._paused)
            assert relay._queued < 4 << 20
            transport.resume_reading()
            received = 0
            while (frame := await socket.frame())[1] != Kind.END:
                received += len(frame[4]) if frame[1] == Kind.DATA else 0
            assert received == 60_000_000


async def test_events_tell_the_story_live(world: World) -> None:
    """What has happened first, then each transition, and the end after the last."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open("events", sandbox_id=made["id"])
        first = [(await socket.frame())[2]["state"] for _ in range(2)]
        assert first == ["creating", "running"]
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        end, _, items = await socket.result(stream)
        assert (end, items[0]["state"], items[0]["actor"]) == ({}, "stopped", "alice")


async def test_the_socket_of_a_node_without_runtime_closes_with_1012(world: World) -> None:
    """The client's sign to connect again."""
    async with world.edge() as (_, api):
        await world.runtime.stop()
        with pytest.raises((aiohttp.WSServerHandshakeError, ConnectionError)):
            async with api.socket() as socket:
                await socket.frame()
        await asyncio.sleep(0)
