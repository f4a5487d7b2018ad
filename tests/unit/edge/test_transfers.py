"""What a client may ask for when it upgrades to a transfer, and what becomes of its file streams."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.api import ids
from dsec.edge.core import Core
from dsec.edge.file_streams import open_file_stream
from dsec.edge.transfers import transfer_params
from dsec.errors import DSecError, InvalidArgument, NotFound, Unsupported
from dsec.testing.edge_world import World

pytestmark = pytest.mark.anyio
ID = ids.exec_id("sb-x", "key")


async def test_a_request_is_completed(world: World) -> None:
    """The user and the directory are the sandbox's; flags are what was said."""
    async with world.edge() as (edge, api):
        sandbox = (await api.create())["id"]
        _check_completed(edge.core, sandbox)


def _check_completed(core: Core, sandbox: str) -> None:
    target = f"/v1/sandboxes/{sandbox}/transfer?direction=upload&transfer_id={ID}&path=%2Fa%FF&parents=true"
    method, params = transfer_params(core, target)
    assert method == "transfer.upload"
    assert params | {"user": "", "cwd": b"/"} == {
        "sandbox_id": sandbox, "transfer_id": ID, "resume": False, "offset": 0, "path": b"/a\xff", "user": "",
        "cwd": b"/", "parents": True, "owners": False,
    }  # fmt: skip
    method, params = transfer_params(
        core,
        f"/v1/sandboxes/{sandbox}/transfer?direction=download&transfer_id={ID}&path=a&offset=7&resume=true&user=u",
    )
    assert (method, params["offset"], params["resume"], params["user"]) == ("transfer.download", 7, True, "u")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("direction=sideways&path=a", InvalidArgument),
        ("direction=upload&path=a&follow=true", InvalidArgument),
        ("direction=upload&path=", InvalidArgument),
        ("direction=upload&path=a%00", InvalidArgument),
        ("direction=download&path=a&offset=-1", InvalidArgument),
        ("direction=download&path=a&surprise=1", InvalidArgument),
    ],
)
async def test_bad_requests(world: World, query: str, error: type[DSecError]) -> None:
    """Refused before anything is asked of the runtime."""
    async with world.edge() as (edge, api):
        _check_refused(edge.core, (await api.create())["id"], query, error)


def _check_refused(core: Core, sandbox: str, query: str, error: type[DSecError]) -> None:
    with pytest.raises(error):
        transfer_params(core, f"/v1/sandboxes/{sandbox}/transfer?transfer_id={ID}&{query}")
    with pytest.raises(NotFound):
        transfer_params(core, f"/v1/sandboxes/none/transfer?transfer_id={ID}&direction=upload&path=a")
    with pytest.raises(InvalidArgument):
        transfer_params(core, f"/v1/sandboxes/{sandbox}/transfer?transfer_id=x&direction=upload&path=a")


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("file.none", {}, Unsupported),
        ("file.read", {"path": b"a"}, Unsupported),
        ("file.list", {"path": b"a", "surprise": 1}, Unsupported),
        ("file.list", {"path": b""}, InvalidArgument),
        ("file.list", {"path": b"a", "depth": 65}, InvalidArgument),
        ("file.watch", {"path": 1}, InvalidArgument),
    ],
)
async def test_bad_streams(world: World, method: str, params: dict[str, Any], error: type[DSecError]) -> None:
    """A method or field that is not known is refused by name, a value that does not fit as such."""
    async with world.edge() as (edge, api):
        sandbox = (await api.create())["id"]
        with pytest.raises(error):
            open_file_stream(edge.core, method, {"sandbox_id": sandbox} | params)
        opened = open_file_stream(edge.core, "file.list", {"sandbox_id": sandbox, "path": b"a"})
    assert opened.params["depth"] == 1 and opened.sandbox_id == sandbox
