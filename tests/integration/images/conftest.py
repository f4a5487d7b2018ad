"""Fixtures of the image tests that run the real tools, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from dsec.images import Images, ImagesConfig, SubprocessTools

Configure = Callable[..., ImagesConfig]


@pytest.fixture(autouse=True)
def needs_root() -> None:
    """Owners, device nodes and trusted attributes need root; the image tools must be installed."""
    missing = [each for each in ("mkfs.erofs", "skopeo", "zstd", "unshare") if shutil.which(each) is None]
    if os.geteuid() != 0 or missing:
        pytest.fail(f"these tests need root and {missing or 'nothing else'}: make setup")


@pytest.fixture
def anyio_backend() -> str:
    """The platform runs on asyncio."""
    return "asyncio"


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Makes a node's image configuration below the test's directory."""

    def make(name: str = "node", **fields: object) -> ImagesConfig:
        root = tmp_path / name
        return ImagesConfig(
            layers_dir=root / "layers",
            catalogue=root / "catalogue.db",
            scratch_dir=root / "scratch",
            **fields,  # type: ignore[arg-type]
        )

    return make


@pytest.fixture
async def images(configure: Configure) -> AsyncIterator[Images]:
    """A node's images, over the real tools."""
    config = configure()
    async with Images(config, SubprocessTools()) as made:
        yield made
    assert list(config.scratch_dir.iterdir()) == []


@pytest.fixture(autouse=True)
def leaks_no_descriptors() -> Iterator[None]:
    """Each test closes the files that it opened."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    after = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    # The event loop's own and pytest's capture files come and go.
    assert after <= before + 8


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[[Path, str], str]:
    """Runs Python code with a layer mounted at ``m``, in a mount namespace of its own, and returns what it printed.

    The mount is mount(2) on the file itself, as the runtime does it, not through a loop device.
    """
    return lambda layer, code: _in_mount(tmp_path, layer, code)


_MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
layer, m = sys.argv[1], sys.argv[2]
options = f"device={layer}/data".encode()
if libc.mount(f"{layer}/metadata".encode(), m.encode(), b"erofs", 1, options) != 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
os.chdir(m)
"""


def _in_mount(tmp_path: Path, layer: Path, code: str) -> str:
    point = tmp_path / "mount-point"
    point.mkdir(exist_ok=True)
    argv = ["unshare", "--mount", sys.executable, "-c", _MOUNT + code, str(layer), str(point)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout
