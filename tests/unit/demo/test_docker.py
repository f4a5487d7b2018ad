"""The parts of the comparison with Docker that need no daemon."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.demo.boxes import LayerSource
from dsec.demo.docker_api import DockerApi, demultiplex, socket_of
from dsec.demo.docker_boxes import DockerBoxes
from dsec.errors import InvalidArgument, NodeError


def frame(stream: int, data: bytes) -> bytes:
    """A frame of Docker's multiplexed output."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def test_output_is_separated() -> None:
    """Frames of both streams in any order, empty ones too; a frame cut short gives what there is of it."""
    body = frame(1, b"a") + frame(2, b"x") + frame(1, b"") + frame(1, b"bc")
    assert demultiplex(body) == (b"abc", b"x")
    assert demultiplex(body[:-1]) == (b"ab", b"x")
    assert demultiplex(b"") == (b"", b"")


def test_only_a_daemon_on_this_machine_is_compared() -> None:
    """A remote daemon's times would hold the network's."""
    assert socket_of({}) == Path("/var/run/docker.sock")
    assert socket_of({"DOCKER_HOST": "unix:///x/d.sock"}) == Path("/x/d.sock")
    with pytest.raises(InvalidArgument):
        socket_of({"DOCKER_HOST": "tcp://10.0.0.1:2375"})


def test_no_daemon_is_a_clear_error(tmp_path: Path) -> None:
    """``--docker`` without a daemon says so and how to get one."""

    async def ping() -> None:
        async with DockerApi(tmp_path / "none.sock"):
            pass

    with pytest.raises(NodeError, match="no Docker daemon answers") as caught:
        asyncio.run(ping())
    assert "apt-get install docker.io" in str(caught.value.remedy)


def test_an_image_is_built_of_the_layers_in_order(tmp_path: Path) -> None:
    """The build's context copies the workspace first, then the toolkits, each to its place."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "setup.py").touch()
    (tmp_path / "t").mkdir()

    async def root(image: str) -> AsyncIterator[bytes]:
        yield b""

    boxes = DockerBoxes(DockerApi(tmp_path / "none.sock"), "run", root)
    layers = [
        LayerSource("workspace/w:1", tmp_path / "w", "/testbed"),
        LayerSource("toolkit/t:1", tmp_path / "t", "/opt/t"),
    ]
    asyncio.run(boxes.build(layers))
    with tarfile.open(fileobj=io.BytesIO(boxes.context("base", ["workspace/w:1", "toolkit/t:1"]))) as tar:
        dockerfile = tar.extractfile("Dockerfile")
        assert dockerfile is not None
        assert dockerfile.read().decode() == "FROM base\nCOPY layer0 /testbed/\nCOPY layer1 /opt/t/"
        assert "layer0/setup.py" in tar.getnames()
    with pytest.raises(InvalidArgument, match="unknown:1"):
        boxes.context("base", ["unknown:1"])
