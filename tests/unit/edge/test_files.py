"""Files over HTTP: exact bytes in constant memory, errors as answers."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from urllib.parse import quote_from_bytes

import pytest

from dsec.errors import FileMissing, InvalidArgument, NotFound, SandboxGone
from dsec.testing.edge_world import Api, World, failing

pytestmark = pytest.mark.anyio


async def read(api: Api, sandbox_id: str, query: str) -> bytes:
    async with api.session.get(f"http://edge/v1/sandboxes/{sandbox_id}/files?{query}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read()


async def test_bytes_survive_the_round_trip(world: World) -> None:
    """5 MB of random bytes under a name that is no UTF-8, with mode and in pieces."""
    data = os.urandom(5_000_000)
    name = quote_from_bytes(b"/tmp/na\xffme &=%")
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"http://edge/v1/sandboxes/{made['id']}/files?path={name}&mode=600"
        async with api.session.put(path, data=io.BytesIO(data)) as answer:
            assert (await answer.json())["bytes"] == len(data)
        assert world.runtime.sandboxes[made["id"]].files[b"/tmp/na\xffme &=%"] == (data, 0o600)
        assert await read(api, made["id"], f"path={name}") == data
        assert await read(api, made["id"], f"path={name}&offset=4000000&limit=7") == data[4_000_000:4_000_007]


async def test_an_empty_file(world: World) -> None:
    """Nothing is something."""
    async with world.edge() as (_, api):
        made = await api.create()
        async with api.session.put(f"http://edge/v1/sandboxes/{made['id']}/files?path=/e", data=b"") as answer:
            assert (await answer.json())["bytes"] == 0
        assert await read(api, made["id"], "path=/e") == b""


async def test_a_missing_file_is_an_answer(world: World) -> None:
    """FileMissing with errno and path, status 404."""
    async with world.edge() as (_, api):
        made = await api.create()
        error = await failing(api.call("GET", f"/v1/sandboxes/{made['id']}/files?path=/none"))
        assert isinstance(error, FileMissing)
        assert (error.errno, error.filename) == (2, "/none")


@pytest.mark.parametrize(
    "query", ["", "path=", "path=/a&mode=9", "path=/a&mode=77777", "path=/a&colour=red", "path=a%00b"]
)
async def test_malformed_writes_are_refused(world: World, query: str) -> None:
    """InvalidArgument before the runtime hears of it."""
    async with world.edge() as (_, api):
        made = await api.create()
        error = await failing(api.call("PUT", f"/v1/sandboxes/{made['id']}/files?{query}", {}))
        assert isinstance(error, InvalidArgument)
    assert world.runtime.called("file.write") == []


async def test_a_body_of_unknown_length_is_refused(world: World) -> None:
    """A write is atomic: its length is known before it begins."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    async with world.edge() as (_, api):
        made = await api.create()
        async with api.session.put(f"http://edge/v1/sandboxes/{made['id']}/files?path=/a", data=pieces()) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_argument")


async def test_files_of_what_does_not_run(world: World) -> None:
    """SandboxGone for an ended sandbox, NotFound for an unknown one."""
    async with world.edge() as (_, api):
        made = await api.create()
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert isinstance(await failing(api.call("GET", f"/v1/sandboxes/{made['id']}/files?path=/a")), SandboxGone)
        assert isinstance(await failing(api.call("GET", "/v1/sandboxes/nobody/files?path=/a")), NotFound)
