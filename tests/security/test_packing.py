"""What a sandbox has laid out for whoever packs it: links out of it, races, names and marks of overlay's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SECRET = Path(f"/tmp/dsec-packed-{os.getpid()}")
"""A file of the host, world-readable, that a sandbox wants in a layer."""
LAID = f"""
set -e
mkdir -p /work/real /work/swap/a; cd /work
echo own > real/{SECRET.name}; echo own > swap/a/{SECRET.name}
ln -s {SECRET} secret; ln -s /tmp tmp; ln -s ../../../../../../../tmp up; ln -s . loop; ln -s /proc/self/root/tmp proc
mkfifo pipe; echo x > plain; chmod 6755 plain
python3 - <<END
import os, socket
socket.socket(socket.AF_UNIX).bind("/work/socket")
os.mkdir("/work/marked")
os.setxattr("/work/marked", "user.overlay.opaque", b"y")
for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.own"):
    try:
        os.setxattr("/work/marked", name, b"y")
    except OSError:
        continue
    raise SystemExit(name + " could be set")
try:
    os.mknod("/work/whiteout", 0o020000, 0)
except OSError:
    pass
else:
    raise SystemExit("a whiteout could be made")
END
"""
SWAP = """
import ctypes, os
libc = ctypes.CDLL(None)
os.symlink("/tmp", "/work/swap/b")
while not os.path.exists("/work/over"):
    libc.renameat2(-100, b"/work/swap/a", -100, b"/work/swap/b", 2)
"""


@pytest.fixture
def secret() -> Iterator[bytes]:
    """What must not get into a layer."""
    content = b"secret of the host " + os.urandom(16).hex().encode()
    SECRET.write_bytes(content)
    SECRET.chmod(0o644)
    yield content
    SECRET.unlink()


async def test_nothing_of_the_host_gets_in(
    node: RunningNode, client: dsec.DSecClient, sandbox: dsec.Sandbox, secret: bytes
) -> None:
    """Links stay links, directories that become links are what they were at the moment, marks mean nothing."""
    await sandbox.run_shell(LAID, check=True)
    swapping = await sandbox.spawn("python3", "-c", SWAP)
    for number in range(5):
        packed = await sandbox.pack_diff(f"workspace/hostile:{number}", residue=dsec.Residue(defaults=False))
        found = node.paths.layers / packed.digest
        assert secret not in (found / "data").read_bytes() and secret not in (found / "metadata").read_bytes()
    await sandbox.write("/work/over", b"")
    assert (await swapping.wait()).ok
    async with client.sandbox(IMAGE, workspace="workspace/hostile:4") as other:
        seen = await other.run_shell(
            f"cd /work; readlink secret tmp up loop proc; stat -c %F pipe socket; stat -c %a plain; "
            f"cat real/{SECRET.name}; cat secret 2>&1; ls marked; "
            f"python3 -c 'import os; print(os.listxattr(\"/work/marked\"))'"
        )
        assert seen.stdout.splitlines() == [
            str(SECRET), "/tmp", "../../../../../../../tmp", ".", "/proc/self/root/tmp", "fifo", "socket", "6755",
            "own", "cat: secret: No such file or directory", "['user.overlay.opaque']",
        ]  # fmt: skip
    for number in range(5):
        await client.layers.remove(f"workspace/hostile:{number}")
