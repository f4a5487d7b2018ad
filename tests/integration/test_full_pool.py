"""A storage pool that sandboxes together have filled: told where it is felt, and the node goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

FILL = (
    "import errno, os\n"
    "file, data = os.open('/big', os.O_CREAT | os.O_WRONLY), os.urandom(1 << 20)\n"
    "try:\n"
    "    while True: os.write(file, data)\n"
    "except OSError as error:\n"
    "    print(errno.errorcode[error.errno])\n"
)


@pytest.fixture(scope="module")
def node(store: Path) -> Iterator[RunningNode]:
    """A node with a pool of half a GiB."""
    with private_node(store, pool_mib=512) as running:
        yield running


async def test_a_full_pool(node: RunningNode, client: dsec.DSecClient) -> None:
    """The writer gets ENOSPC, other programs go on, creates are made or refused by a typed error.

    Once the hog is stopped the space comes back and all goes well.
    """
    wide = dsec.SandboxArgs(IMAGE, disk_mib=(16, 8192))
    async with client.sandbox(wide) as hog, client.sandbox(wide) as neighbour:
        result = await hog.exec("python3", "-c", FILL, timeout_s=60)
        assert result.stdout.strip() in ("ENOSPC", "EDQUOT")
        assert (await neighbour.run_shell("echo runs")).stdout == "runs\n"
        with pytest.raises(dsec.DSecError) as failed:
            await neighbour.write("/more", b"x" * 50_000_000)
        assert isinstance(failed.value, OSError) or failed.value.remedy
        for made in await client.sandboxes(wide, n=3, deadline_s=1).all():
            if made.sandbox is not None:
                await made.sandbox.stop()
            else:
                assert isinstance(made.error, dsec.CapacityError | dsec.NodeError), made.error
    async with client.sandbox(wide, deadline_s=60) as after:
        fits = "until head -c 5M /dev/urandom > /file 2>/dev/null; do sleep 0.1; done; echo fits"
        assert (await after.run_shell(fits, timeout_s=60)).stdout == "fits\n"


async def test_a_disk_request_above_the_pool(client: dsec.DSecClient) -> None:
    """What could never fit is the caller's error, not a wait."""
    with pytest.raises(dsec.InvalidArgument) as caught:
        await client.sandbox(IMAGE, disk_mib=(4096, 4096), deadline_s=20)
    assert caught.value.fault == "caller"
