"""Layers between nodes: one pushes, the other pulls and runs, over a bucket and over a directory."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.images.samples import Member, docker_archive, layer_archive
from dsec.testing.node import RunningNode, private_node
from dsec.testing.seaweed import Seaweed, mounted, seaweed

from .test_cli import dsec as dsec_command

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]
IMAGE = "dsec/debian:12"


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    """SeaweedFS, for the module."""
    with seaweed() as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: Seaweed) -> Iterator[str]:
    """A node's stores: a bucket, the same server's FUSE mount, and a bucket that may not be written."""
    with mounted(server) as point, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        (point / "dfs").mkdir()
        yield f"""
reader = "whole"
[stores.bucket]
url = "s3://{server.bucket}/layers-of-nodes"
endpoint = "{server.s3}"
default = true
[stores.dfs]
url = "file://{point}/dfs"
[stores.gone]
url = "file://{point}/not-mounted"
"""


@pytest.fixture(scope="module")
def nodes(settings: str, store: Path) -> Iterator[tuple[RunningNode, RunningNode]]:
    """Two nodes with the same stores."""
    with private_node(store, settings=settings) as one, private_node(store, settings=settings) as two:
        yield one, two


@pytest.fixture
async def clients(nodes: tuple[RunningNode, RunningNode]) -> AsyncIterator[tuple[dsec.DSecClient, dsec.DSecClient]]:
    """A client of each."""
    one, two = nodes
    async with dsec.DSecClient(one.url, one.token) as first, dsec.DSecClient(two.url, two.token) as second:
        yield first, second


def _tree(folder: Path, text: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "greet").write_text(f"#!/bin/sh\necho {text}\n")
    (folder / "bin" / "greet").chmod(0o755)
    (folder / "random").write_bytes(secrets.token_bytes(600_000))
    (folder / "zeros").write_bytes(bytes(1 << 20))
    os.link(folder / "random", folder / "linked")
    return folder


@pytest.mark.parametrize("where", ["bucket", "dfs"])
async def test_pushed_here_pulled_and_run_there(
    clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path, where: str
) -> None:
    """The other node has the same digest; its sandbox runs what the toolkit brings, and says what it is made of."""
    one, two = clients
    tag = f"toolkit/greet-{where}:1"
    built = await one.layers.build(
        _tree(tmp_path / "t", f"hello {where}"), tag, at="/opt/greet", env={"GREETING": "yes"},
        path_prepend=["/opt/greet/bin"],
    )  # fmt: skip
    steps: list[int] = []
    pushed = await one.layers.push(tag, store=where, on_progress=lambda step: steps.append(step.done))
    assert pushed.digest == built.digest
    assert 600_000 < pushed.sent_bytes < 900_000
    assert (await one.layers.push(tag, store=where)).sent_bytes == 0
    assert (await one.layers.verify(tag, store=where, deep=True)).faults == []
    assert [each.reference for each in await two.layers.stored(where)] == [tag]
    pulled = await two.layers.pull(tag, store=where)
    assert (pulled.digest, pulled.environment.env) == (built.digest, {"GREETING": "yes"})
    assert (await two.layers.verify(tag)).faults == []
    async with two.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
        result = await sandbox.run_shell("greet && echo $GREETING && cmp /opt/greet/random /opt/greet/linked")
        assert result.stdout == f"hello {where}\nyes\n", result.stderr
        info = await sandbox.info()
        assert [(each.reference, each.digest) for each in info.composed] == [(tag, built.digest)]
        assert sandbox.id in (await two.layers.get(tag)).sandboxes
    pinned = f"{tag}@sha256:{built.digest}"
    async with two.sandbox(IMAGE, toolkits=(pinned,)) as sandbox:
        assert (await sandbox.exec("greet")).stdout == f"hello {where}\n"
    with pytest.raises(dsec.Conflict):
        await two.layers.get(f"{tag}@sha256:{'0' * 64}")


def test_credentials_are_the_edges_alone(nodes: tuple[RunningNode, RunningNode]) -> None:
    """Of the node's processes only those that speak to stores have them; what is on disk of them is root's."""
    one, _ = nodes
    having = {
        name
        for name, service in one.services().items()
        if b"writersecret" in Path(f"/proc/{service.pid}/environ").read_bytes()
    }
    assert having <= {"edge", "fetcher"}
    assert "edge" in having
    for folder in (one.paths.run, one.paths.data):
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_mode & 0o077 and path.stat().st_size < 1 << 20:
                assert b"writersecret" not in path.read_bytes(), path


async def test_a_layer_by_its_digest(clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path) -> None:
    """Pulled and used by digest alone; it stays through a clean-up until it is removed."""
    one, two = clients
    built = await one.layers.build(_tree(tmp_path / "t", "digest"), "workspace/digest:1", at="/w")
    await one.layers.push("workspace/digest:1")
    by_digest = f"@sha256:{built.digest}"
    assert (await two.layers.pull(by_digest)).reference == by_digest
    assert built.digest not in (await two.layers.gc()).removed_layers
    async with two.sandbox(IMAGE, workspace=by_digest) as sandbox:
        assert (await sandbox.exec("/w/bin/greet")).stdout == "digest\n"
    await two.layers.remove(by_digest)
    with pytest.raises(dsec.NotFound):
        await two.layers.get(by_digest)


async def test_a_tag_that_another_node_published(
    clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path
) -> None:
    """The second node's other layer is a Conflict that names the first, until it is told to move the tag."""
    one, two = clients
    first = await one.layers.build(_tree(tmp_path / "a", "one"), "toolkit/same:1")
    second = await two.layers.build(_tree(tmp_path / "b", "two"), "toolkit/same:1")
    assert first.digest != second.digest
    await one.layers.push("toolkit/same:1")
    with pytest.raises(dsec.Conflict) as caught:
        await two.layers.push("toolkit/same:1")
    assert caught.value.details["digest"] == first.digest
    with pytest.raises(dsec.Conflict):
        await two.layers.pull("toolkit/same:1")
    await two.layers.push("toolkit/same:1", move=True)
    assert (await one.layers.pull("toolkit/same:1", move=True)).digest == second.digest


@pytest.mark.parametrize("where", ["bucket", "dfs"])
async def test_two_nodes_publish_one_layer_at_once(
    clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path, where: str
) -> None:
    """Both succeed, one layer is there, whole, and its tag means it."""
    tree = _tree(tmp_path / "t", "both")
    tag = f"toolkit/race-{where}:1"
    built = [await client.layers.build(tree, tag) for client in clients]
    assert built[0].digest == built[1].digest
    pushed = await asyncio.gather(*(client.layers.push(tag, store=where) for client in clients))
    assert {each.digest for each in pushed} == {built[0].digest}
    assert (await clients[0].layers.verify(tag, store=where, deep=True)).faults == []
    assert [each.digest for each in await clients[1].layers.stored(where) if each.reference == tag] == [
        built[0].digest
    ]


async def test_stores_that_are_not_there(clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path) -> None:
    """An unknown name is NotFound, a directory that is not mounted StoreUnreachable, an unknown tag NotFound."""
    one, _ = clients
    await one.layers.build(_tree(tmp_path / "t", "x"), "toolkit/lost:1")
    with pytest.raises(dsec.NotFound, match="no store"):
        await one.layers.push("toolkit/lost:1", store="unknown")
    with pytest.raises(dsec.StoreUnreachable):
        await one.layers.push("toolkit/lost:1", store="gone")
    with pytest.raises(dsec.NotFound) as caught:
        await one.layers.pull("toolkit/never-pushed:1")
    assert "dsec layer push" in (caught.value.remedy or "")
    assert [each.name for each in await one.layers.stores()] == ["bucket", "dfs", "gone"]


async def test_a_cleanup_here_and_there(clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path) -> None:
    """A removed tag's layer leaves the node at once; the store says what goes in a day, and keeps the rest."""
    one, _ = clients
    built = await one.layers.build(_tree(tmp_path / "t", "gone"), "workspace/cleaned:1")
    await one.layers.push("workspace/cleaned:1", store="dfs")
    await one.layers.remove("workspace/cleaned:1")
    assert (await one.layers.gc(dry_run=True)).removed_layers == []
    await one.layers.remove("workspace/cleaned:1", store="dfs")
    report = await one.layers.gc(store="dfs")
    assert built.digest in report.doomed_layers
    assert report.removed_layers == []


async def test_layers_are_held_against_each_other(
    clients: tuple[dsec.DSecClient, dsec.DSecClient], tmp_path: Path
) -> None:
    """``check`` names the file that a toolkit hides of the image; ``diff`` says what a new version changed."""
    one, _ = clients
    first, second = _tree(tmp_path / "a", "one"), _tree(tmp_path / "b", "two")
    (first / "etc").mkdir()
    (first / "etc" / "passwd").write_text("mine\n")
    await one.layers.build(first, "toolkit/pair:1")
    await one.layers.build(second, "toolkit/pair:2")
    checked = await one.layers.check(["toolkit/pair:1"], image=IMAGE)
    assert {(each.path, each.upper, each.lower) for each in checked.hidden} == {
        ("/etc/passwd", "toolkit/pair:1", IMAGE),
        ("/bin", "toolkit/pair:1", IMAGE),  # There it is a link to usr/bin: sandboxes would have no shell.
    }
    changed = {each.path: each.how for each in (await one.layers.diff("toolkit/pair:1", "toolkit/pair:2")).files}
    assert changed == {
        "/bin/greet": "changed",
        "/random": "changed",
        "/linked": "changed",
        "/etc": "removed",
        "/etc/passwd": "removed",
    }


async def test_an_image_through_a_store(
    clients: tuple[dsec.DSecClient, dsec.DSecClient], nodes: tuple[RunningNode, RunningNode], tmp_path: Path
) -> None:
    """Pushed by one node, fetched by another that never saw its registry or archive, run there as the image says."""
    one, two = clients
    busybox = next(path for path in (Path("build/tools/bin/busybox"), Path("/bin/busybox")) if path.exists())
    lower = layer_archive([
        Member(name="bin/", kind=tarfile.DIRTYPE, mode=0o755),
        Member(name="bin/sh", data=busybox.read_bytes(), mode=0o755),
        Member(name="etc/who", data=b"lower\n"),
    ])  # fmt: skip
    upper = layer_archive([Member(name="etc/who", data=b"upper\n")])
    archive = docker_archive(
        tmp_path / "image.tar", [lower, upper], {"Cmd": ["/bin/sh", "-c", "cat /etc/who"], "Env": ["A=b"]},
        name="team/app:1",
    )  # fmt: skip
    made = await one.images.import_(f"docker-archive:{archive}")
    pushed = await one.images.push("team/app:1", store="dfs")
    assert pushed.digest == made.digest
    assert 0 < pushed.sent_bytes < pushed.size_bytes
    assert (await one.images.push("team/app:1", store="dfs")).sent_bytes < 1_000
    with pytest.raises(dsec.ImageNotFound):
        await two.images.fetch("team/other:1", store="dfs")
    fetched = await two.images.fetch("team/app:1", store="dfs")
    assert (fetched.layers, fetched.digest, fetched.config.cmd) == (made.layers, made.digest, made.config.cmd)
    assert [each.reference for each in await two.layers.list() if (each.reference or "").startswith("@")] == []
    async with two.sandbox("team/app:1", pull="never") as sandbox:
        assert (await sandbox.run_shell("read who < /etc/who; echo $who $A")).stdout == "upper b\n"
    await two.images.remove("team/app:1")
    with pytest.raises(dsec.NotFound):
        await two.layers.get(f"@sha256:{made.layers[0]}")


def test_command_line(nodes: tuple[RunningNode, RunningNode], tmp_path: Path) -> None:
    """Built of a tar file, pushed, listed, pulled on the other node, shown, checked and removed by ``dsec layer``."""
    one, two = nodes
    archive = tmp_path / "tool.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(_tree(tmp_path / "t", "cli"), arcname=".")
    said = _said(one, "layer", "build", str(archive), "toolkit/cli:1", "--at", "/opt/cli", "--env", "CLI=1",
                 "--path-append", "/opt/cli/bin")  # fmt: skip
    digest = said.strip()
    assert _said(one, "layer", "push", "toolkit/cli:1", "--quiet").strip() == digest
    listed = _said(two, "layer", "ls", "--store", "bucket").splitlines()
    assert ["toolkit/cli:1", digest[:12]] in [line.split()[:2] for line in listed]
    assert _said(two, "layer", "pull", f"toolkit/cli:1@sha256:{digest}").strip() == digest
    shown = _said(two, "layer", "show", "toolkit/cli:1")
    assert digest in shown and "CLI=1 PATH=…:/opt/cli/bin" in shown
    assert (
        _said(two, "run", "--rm", "--toolkit", "toolkit/cli:1", IMAGE, "sh", "-c", "greet; echo $CLI") == "cli\n1\n"
    )
    assert _said(two, "layer", "verify", "toolkit/cli:1", "--store", "bucket", "--deep").strip() == digest
    assert _said(two, "layer", "check", IMAGE, "toolkit/cli:1").splitlines()[1:] == []
    assert _said(two, "layer", "diff", "toolkit/cli:1", f"@sha256:{digest}") == ""
    assert "bucket" in _said(two, "layer", "stores")
    assert _said(two, "layer", "rm", "toolkit/cli:1").strip() == "toolkit/cli:1"
    assert json.loads(_said(two, "layer", "gc", "--dry-run", "--json"))["removed_layers"] == []
    refused = dsec_command(two, "layer", "show", "toolkit/cli:1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("dsec: ") and "pull it from a store" in refused.stderr


def _said(node: RunningNode, *words: str) -> str:
    done = dsec_command(node, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout
