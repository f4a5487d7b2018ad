"""Packing, over a fake runtime and the real builder: once for a key, joined, taken up again, undone when it fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsec.api.packing import Residue
from dsec.errors import CapacityError, Conflict, InvalidArgument, NodeError, NotFound, SandboxGone, Unsupported
from dsec.images.tools import ToolResult
from dsec.layering.packing.job import JOB, PackFailed, PackJob
from dsec.layering.packing.packing import pack
from dsec.testing.edge_world import LAYER, Api, World, failing

pytestmark = pytest.mark.anyio


class Builder:
    """The program that packs, run in this process over a directory in place of a snapshot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: NodeError | Unsupported | None = None

    async def __call__(self, argv: Sequence[str], _: Callable[[str], None]) -> ToolResult:
        """As the real one."""
        directory, snapshot = Path(argv[-3]), argv[-1]
        self.runs.append(snapshot)
        await self.go_on.wait()
        if self.error is not None:
            return ToolResult(0, msgspec.json.encode(PackFailed(self.error.to_wire())))
        job = msgspec.json.decode((directory / JOB).read_bytes(), type=PackJob)
        fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            return ToolResult(0, msgspec.json.encode(pack(job, fd, directory)))
        finally:
            os.close(fd)


@pytest.fixture
def builder(world: World, tmp_path: Path) -> Builder:
    """What a sandbox has written: a file, and its shell's history."""
    root = tmp_path / "upper"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    (root / ".bash_history").write_bytes(b"ls\n")
    made = Builder(root)
    world.programs["pack"] = made
    return made


async def packed(api: Api, sandbox: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What is packed."""
    body = {"key": "key-1", "reference": "workspace/w:1"} | fields
    made: dict[str, Any] = await api.call("POST", f"/v1/sandboxes/{sandbox['id']}/pack", body)
    return made


async def test_it_is_packed_once_for_a_key(world: World, builder: Builder) -> None:
    """Who asks meanwhile joins, who asks later is told the same, by another edge too; no snapshot is left."""
    async with world.edge() as (_, api):
        made = await api.create()
        builder.go_on.clear()
        first = asyncio.create_task(packed(api, made))
        second = asyncio.create_task(packed(api, made))
        while not builder.runs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert isinstance(await failing(packed(api, made, description="another")), Conflict)
        assert len(world.runtime.snapshots) == 1
        builder.go_on.set()
        one, two = await asyncio.gather(first, second)
        assert one == two and len(builder.runs) == 1 and world.runtime.snapshots == {}
        assert [each["path"] for each in one["removed"]] == ["/.bash_history"] and one["entries"] == 2
        assert one["provenance"]["by"] == "alice" and one["provenance"]["parents"] == [LAYER]
        shown = await api.call("GET", "/v1/layers/workspace/w:1")
        assert shown["digest"] == one["digest"] and shown["provenance"] == one["provenance"]
    async with world.edge() as (_, api):
        assert await packed(api, made) == one and len(builder.runs) == 1
        assert isinstance(await failing(packed(api, made, reference="workspace/w:2")), Conflict)


async def test_the_next_edge_packs_the_same_moment(world: World, builder: Builder) -> None:
    """An edge that dies while it is built leaves the snapshot; whoever asks again gets the layer of that."""
    async with world.edge() as (_, api):
        made = await api.create()
        builder.go_on.clear()
        asked = asyncio.create_task(packed(api, made))
        while not builder.runs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.gather(asked, return_exceptions=True)
    builder.go_on.set()
    async with world.edge() as (edge, api):
        assert edge.core.uses_layer(LAYER) and len(edge.core.snapshots) == 1
        await packed(api, made)
        assert builder.runs == [builder.runs[0]] * 2 and len(world.runtime.called("snapshot.make")) == 1
        assert edge.core.snapshots == {} and world.runtime.snapshots == {}


async def test_what_fails_leaves_nothing_and_may_be_asked_again(world: World, builder: Builder) -> None:
    """What no layer can hold drops the moment; a failure of the node keeps it."""
    async with world.edge() as (edge, api):
        made = await api.create()
        builder.error = Unsupported("too deep")
        assert isinstance(await failing(packed(api, made)), Unsupported)
        assert world.runtime.snapshots == {} and edge.core.records.packs.all() == []
        assert isinstance(await failing(api.call("GET", "/v1/layers/workspace/w:1")), NotFound)
        builder.error = NodeError("killed")
        assert isinstance(await failing(packed(api, made, key="key-2")), NodeError)
        assert len(world.runtime.snapshots) == 1
        builder.error = None
        assert (await packed(api, made, key="key-2"))["entries"] == 2 and world.runtime.snapshots == {}
        world.runtime.failures["snapshot.make"] = CapacityError("the pool is full")
        assert isinstance(await failing(packed(api, made, key="key-3")), CapacityError)


async def test_what_is_refused(world: World, builder: Builder) -> None:
    """Names, patterns, too much text, and sandboxes that have ended; nothing is taken for them."""
    async with world.edge() as (_, api):
        made = await api.create()
        for fields in (
            {"reference": "base/b:1"}, {"reference": "w"}, {"residue": {"extra": [""]}},
            {"residue": {"keep": ["x"] * 1001}}, {"commands": ["x" * 70_000]}, {"key": "a b"},
        ):  # fmt: skip
            assert isinstance(await failing(packed(api, made, **fields)), InvalidArgument), fields
        assert isinstance(await failing(packed(api, made, residue={"more": 1})), Unsupported)
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert isinstance(await failing(packed(api, made)), SandboxGone)
        assert world.runtime.called("snapshot.make") == [] and builder.runs == []


async def test_the_nodes_rules_are_those_of_every_call(world: World, builder: Builder) -> None:
    """What the settings leave out, or keep, holds until a call leaves the defaults off; each path names its rule."""
    (builder.root / "core.1").write_bytes(b"dump")
    residue = Residue(extra=["core.*"], keep=[".bash_history"])
    world.config = msgspec.structs.replace(world.config, residue=residue)
    async with world.edge() as (_, api):
        made = await api.create()

        async def left_out(number: int, **fields: Any) -> dict[str, str]:
            found = await packed(api, made, key=f"key-{number}", residue=fields)
            return {each["path"]: each["rule"] for each in found["removed"]}

        assert await left_out(1) == {"/core.1": "node"}
        assert await left_out(2, keep=["core.1"]) == {}
        assert await left_out(3, extra=["file"]) == {"/core.1": "node", "/file": "asked for"}
        assert await left_out(4, defaults=False) == {}
    world.config = msgspec.structs.replace(world.config, residue=Residue(defaults=False))
    async with world.edge() as (_, api):
        assert (await packed(api, made, key="key-5"))["removed"] == []
