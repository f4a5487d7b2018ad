"""A node of which a test takes single protections away, and takes them back.

Its keeper and runtime are programs of their own (``cargo build --profile weakened``); what is installed has nothing
of this in it. Whatever runs on such a node is not contained: attacks on it look, and change nothing of the machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.node import binaries
from dsec.testing.node import RunningNode, private_node

__all__ = ["SOURCE", "client", "left_out", "node", "weakened_node"]

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "crates" / "runtime" / "src" / "weaken.rs"
"""Where the names of the protections are."""
_BUILD = [
    "cargo",
    "build",
    "--quiet",
    "--profile",
    "weakened",
    "--package",
    "dsec-keeper",
    "--package",
    "dsec-runtime",
]
_BUILD += ["--features", "dsec-keeper/weaken,dsec-runtime/weaken", "--bins"]


def _programs(directory: Path) -> None:
    """The node's programs in a directory, two of them weakened."""
    subprocess.run(_BUILD, cwd=CHECKOUT, check=True)
    built = CHECKOUT / "target" / f"{platform.machine()}-unknown-linux-gnu" / "weakened"
    for kept in (found := binaries.find_binaries()).__struct_fields__:
        path: Path = getattr(found, kept)
        weakened = built / f"weakened-{kept}"
        (directory / path.name).symlink_to(weakened if kept in ("keeper", "runtime") else path)


@contextlib.contextmanager
def weakened_node(store: Path, directory: Path) -> Iterator[RunningNode]:
    """A node from which protections can be taken, its programs in this empty directory."""
    _programs(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binaries, "_places", lambda: [directory])
        with private_node(store) as node:
            yield node


def _say(node: RunningNode, names: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(20)
        talk.connect(os.fspath(node.paths.run / "weaken.sock"))
        talk.sendall((" ".join(names) + "\n").encode())
        answer = talk.recv(200).decode().strip()
    assert answer == "done", answer


@contextlib.contextmanager
def left_out(node: RunningNode, *names: str) -> Iterator[None]:
    """Whatever the node makes meanwhile is made without these."""
    _say(node, names)
    try:
        yield
    finally:
        _say(node, ())


@pytest.fixture(scope="module")
def node(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node from which protections can be taken."""
    with weakened_node(store, tmp_path_factory.mktemp("programs")) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Of that node."""
    async with node.client() as made:
        yield made
