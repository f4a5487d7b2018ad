"""Layers packed from live sandboxes: of one moment, exact, without residue, harmless, and at once to be used."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .conftest import IMAGE
from .test_cli import dsec as dsec_command

pytestmark = [pytest.mark.node, pytest.mark.anyio]

WROTE = r"""
set -e
mkdir -p /work/app; echo kept > /work/app/note; chown 33:1000 /work/app/note; chmod 4751 /work/app/note
ln /work/app/note /work/hard; ln -s app/note /work/link; truncate -s 1G /work/sparse; echo end >> /work/sparse
mkfifo /work/pipe; touch -d '2001-02-03 04:05:06.789' /work/old
rm -r /usr/share/doc; rm -r /etc/apt; mkdir /etc/apt; echo mine > /etc/apt/mine; echo changed >> /etc/motd
python3 - <<END
import os
open(b"/work/n\xff\n", "w").close()
os.setxattr("/work/app/note", "user.x", b"y")
os.setxattr("/work/app/note", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
END
cp /bin/cat /work/cap; python3 -c '
import os; os.setxattr("/work/cap", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))'
"""
LOOKS = r"""
set -e
cd /work; find . -type d -printf '%p %m %U %G %T@\n' -o -printf '%p %y %m %U %G %s %n %T@ %l\n' | sort | cat -v
cat app/note; tail -n1 sparse | tr -d '\0'; tail -n1 /etc/motd
test ! -e /usr/share/doc; ls -a /etc/apt
python3 -c 'import os; print(os.getxattr("/work/hard", "user.x"), os.getxattr("/work/cap", "security.capability"))'
"""
WRITER = """
i=0
while [ ! -e /root/over ]; do
    i=$((i+1)); echo $i > /root/a.new; sync /root/a.new; mv /root/a.new /root/a
    echo $i > /root/b.new; sync /root/b.new; mv /root/b.new /root/b
done
"""


@pytest.fixture(autouse=True)
async def no_layer_left(client: dsec.DSecClient) -> AsyncIterator[None]:
    """Each test's layers go with it, and no snapshot stays of its packings."""
    yield
    assert await client.snapshots.list() == []
    for each in await client.layers.list():
        if each.reference and each.reference.split("/")[1].startswith("t-"):
            await client.layers.remove(each.reference)


async def test_a_new_sandbox_sees_exactly_what_was_there(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Modes, owners, set-ID bits, capabilities, links, holes, times, odd names, removals, replaced directories."""
    await sandbox.run_shell(WROTE, check=True)
    before = await sandbox.run_shell(LOOKS, check=True)
    packed = await sandbox.pack_diff("workspace/t-exact:1")
    assert not packed.partial and packed.whiteouts >= 1 and packed.removed == []
    assert packed.frozen_s < 0.5  # 0.002 on a quiet machine
    await sandbox.run_shell("rm -r /work; echo later > /etc/motd", check=True)
    async with client.sandbox(IMAGE, workspace="workspace/t-exact:1") as other:
        assert (await other.run_shell(LOOKS, check=True)).stdout == before.stdout
        # It can be written to, and what was removed comes back only when it is made.
        await other.run_shell('rm -r /work/app; mkdir /usr/share/doc; test -z "$(ls /usr/share/doc)"', check=True)
        again = await other.pack_diff("workspace/t-exact:2")
        assert again.provenance.merged == [packed.digest]
    assert (await sandbox.run_shell("cat /etc/motd")).stdout == "later\n"


async def test_the_same_content_is_the_same_layer(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Packed twice it has one digest; by one key it is packed once; the key means that request only."""
    await sandbox.run_shell("mkdir /work; seq 100000 > /work/numbers", check=True)
    one = await sandbox.pack_diff("workspace/t-same:1", key="pack-1")
    two = await sandbox.pack_diff("workspace/t-same:2")
    assert one.digest == two.digest
    await sandbox.write("/work/more", b"more")
    assert await sandbox.pack_diff("workspace/t-same:1", key="pack-1") == one
    with pytest.raises(dsec.Conflict):
        await sandbox.pack_diff("workspace/t-same:3", key="pack-1")
    many = await asyncio.gather(*(sandbox.pack_diff("workspace/t-same:4", key="pack-2") for _ in range(5)))
    assert len({each.digest for each in many}) == 1 and many[0].digest != one.digest


async def test_it_is_of_one_moment(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Of two files written in turn, each flushed, no layer shows the second ahead of the first; both go on."""
    writer = await sandbox.spawn(shell=WRITER)
    seen = []
    for number in range(4):
        await sandbox.pack_diff(f"workspace/t-moment:{number}")
        async with client.sandbox(IMAGE, workspace=f"workspace/t-moment:{number}") as other:
            looked = await other.run_shell("cat /root/a /root/b")
            seen.append([int(word) for word in looked.stdout.split()])
    await sandbox.write("/root/over", b"")
    assert (await writer.wait()).ok
    pairs = [pair for pair in seen if len(pair) == 2]
    assert len(pairs) >= 2 and all(a - b in (0, 1) for a, b in pairs), seen
    assert pairs == sorted(pairs) and pairs[0] != pairs[-1]


async def test_residue_is_left_out_and_told(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """By the rules, by more of them, and not where something is to stay; without rules all is in it."""
    await sandbox.run_shell(
        "mkdir -p /root/.cache/pip /work/__pycache__ /work/data; head -c 100000 /dev/urandom > /root/.cache/pip/w; "
        "echo token > /root/.netrc; echo x > /work/__pycache__/m.pyc; echo big > /work/data/core; "
        "echo l > /var/log/a.log",
        check=True,
    )
    residue = dsec.Residue(extra=["core"], keep=["/root/.cache/"])
    packed = await sandbox.pack_diff("workspace/t-residue:1", residue=residue)
    assert {(each.path, each.rule) for each in packed.removed} == {
        ("/root/.netrc", "credentials"), ("/var/log/a.log", "log"), ("/work/__pycache__", "build tree"),
        ("/work/data/core", "asked for"),
    }  # fmt: skip
    whole = await sandbox.pack_diff("workspace/t-residue:2", residue=dsec.Residue(defaults=False))
    assert whole.removed == [] and whole.entries > packed.entries
    async with client.sandbox(IMAGE, workspace="workspace/t-residue:1") as other:
        found = await other.run_shell("find /root/.netrc /root/.cache/pip/w /work | sort")
        assert found.stdout == "/root/.cache/pip/w\n/work\n/work/data\n"
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.pack_diff("workspace/t-residue:3", residue=dsec.Residue(extra=["/"]))


async def test_provenance_says_where_it_comes_from(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Sandbox, image, layers below, who, how; the layer shows it, and so does a removed tag's successor."""
    await sandbox.exec("touch", "/root/a b", check=True)
    packed = await sandbox.pack_diff("toolkit/t-from:1", description="one file")
    told = packed.provenance
    info = await sandbox.info()
    assert (told.sandbox_id, told.image, told.parents) == (sandbox.id, info.image, info.layers)
    assert told.by == info.principal and told.description == "one file" and "touch '/root/a b'" in told.commands
    assert (await client.layers.get("toolkit/t-from:1")).provenance == told
    said = await sandbox.pack_diff("toolkit/t-from:2", commands=["make it"])
    assert said.provenance.commands == ["make it"]


async def test_a_second_layer_holds_the_first(client: dsec.DSecClient, tmp_path: Path) -> None:
    """A workspace packed over a workspace shows both, with what its tag brings; a toolkit only what was written."""
    (tmp_path / "file").write_text("first\n")
    (tmp_path / "gone").write_text("gone\n")
    await client.layers.build(tmp_path, "workspace/t-first:1", at="/work", env={"FROM": "first"})
    async with client.sandbox(IMAGE, workspace="workspace/t-first:1") as sandbox:
        await sandbox.run_shell("echo second > /work/second; rm /work/gone", check=True)
        await sandbox.pack_diff("workspace/t-first:2")
        await sandbox.pack_diff("toolkit/t-only:1")
    async with client.sandbox(IMAGE, workspace="workspace/t-first:2") as sandbox:
        seen = await sandbox.run_shell("cat /work/*; echo $FROM")
        assert seen.stdout == "first\nsecond\nfirst\n"
    async with client.sandbox(IMAGE, toolkits=["toolkit/t-only:1"]) as sandbox:
        assert (await sandbox.run_shell("ls /work; echo $FROM")).stdout == "second\n\n"


async def test_what_cannot_be_packed(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Bad names, too deep trees, and sandboxes that have ended; nothing stays of it, and the sandbox runs on."""
    for reference in ("base/t-x:1", "workspace/t-x", "image:1"):
        with pytest.raises(dsec.InvalidArgument):
            await sandbox.pack_diff(reference)
    await sandbox.run_shell("cd /root; for i in $(seq 500); do mkdir d; cd d; done", check=True)
    with pytest.raises(dsec.Unsupported):
        await sandbox.pack_diff("workspace/t-deep:1")
    assert (await sandbox.run_shell("echo on")).stdout == "on\n"
    ended = await client.sandbox(IMAGE)
    await ended.stop()
    with pytest.raises(dsec.SandboxGone):
        await ended.pack_diff("workspace/t-ended:1")
    with pytest.raises(dsec.NotFound):
        await client.layers.get("workspace/t-deep:1")


async def test_the_command_line_packs(node: RunningNode, client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """``dsec layer build --from-sandbox``, its patterns, and what it refuses."""
    await sandbox.run_shell("echo x > /root/.netrc; echo y > /root/core; echo z > /root/z", check=True)
    made = dsec_command(
        node, "layer", "build", "--from-sandbox", sandbox.id, "--leave-out", "core", "workspace/t-cli:1"
    )
    assert made.returncode == 0 and len(made.stdout.strip()) == 64, made.stderr
    assert "left out: 2 files" in made.stderr
    shown = dsec_command(node, "layer", "show", "workspace/t-cli:1")
    assert f"from {sandbox.id}" in shown.stdout
    wrong = dsec_command(node, "layer", "build", "--from-sandbox", sandbox.id, "/tmp", "workspace/t-cli:2")
    assert wrong.returncode != 0
    async with client.sandbox(IMAGE, workspace="workspace/t-cli:1") as other:
        assert (await other.run_shell("ls -A /root")).stdout.split() == [".bashrc", ".profile", "z"]


@pytest.fixture(scope="module")
def two(store: Path) -> Iterator[tuple[RunningNode, RunningNode]]:
    """Two nodes with one store."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dsec-store-"))
        Path(folder).chmod(0o755)
        settings = f'[stores.shelf]\nurl = "file://{folder}"\ndefault = true\n'
        yield (
            stack.enter_context(private_node(store, settings=settings)),
            stack.enter_context(private_node(store, settings=settings)),
        )


async def test_another_node_has_it_from_the_store(two: tuple[RunningNode, RunningNode]) -> None:
    """Pushed, it is pulled elsewhere with its provenance, and shows the same."""
    async with two[0].client() as here, two[1].client() as there:
        async with here.sandbox(IMAGE) as sandbox:
            await sandbox.run_shell("mkdir /work; seq 100000 > /work/numbers; rm -r /usr/share/doc", check=True)
            packed = await sandbox.pack_diff("workspace/t-far:1")
        await here.layers.push("workspace/t-far:1")
        assert (await there.layers.pull("workspace/t-far:1")).digest == packed.digest
        assert (await there.layers.get("workspace/t-far:1")).provenance == packed.provenance
        async with there.sandbox(IMAGE, workspace="workspace/t-far:1") as sandbox:
            seen = await sandbox.run_shell("seq 100000 | cmp - /work/numbers && test ! -e /usr/share/doc")
            assert seen.ok, seen.stderr
