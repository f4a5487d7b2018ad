"""Bringing a node up and taking it down: twice, over rests, in the middle of things."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.databases import FORMATS, format_of
from dsec.errors import Conflict, DSecError, InvalidArgument, NodeError, Unsupported
from dsec.node.down import down
from dsec.node.leaks import find_leaks
from dsec.node.paths import NodePaths
from dsec.node.survey import operation, survey, version_at
from dsec.node.up import UpOptions, up
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]


@pytest.fixture
def own_node(store: Path) -> Iterator[RunningNode]:
    """A node of this test alone, which it may break."""
    with private_node(store) as running:
        yield running


@pytest.fixture
def paths() -> Iterator[NodePaths]:
    """Places for a node that is not up; swept afterwards."""
    root = Path(tempfile.mkdtemp(prefix="dsec-", dir="/tmp"))
    yield NodePaths(f"u{root.name[-8:].lower().replace('_', '0')}", root)
    down(NodePaths(f"u{root.name[-8:].lower().replace('_', '0')}", root), confirm=lambda _: True)
    shutil.rmtree(root)


def write_format(path: Path, number: int) -> None:
    """A database that says it is of this format."""
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version={number}")
    db.execute("CREATE TABLE IF NOT EXISTS something (id TEXT)")
    db.close()


def quick(paths: NodePaths, *, port: int = 0) -> UpOptions:
    """Options for a small node without images."""
    paths.settings.parent.mkdir(parents=True, exist_ok=True)
    paths.settings.write_text("build_default_image = false\n")
    return UpOptions(paths=paths, pool_mib=512, port=port)


def test_node_answers_and_leaves_nothing(paths: NodePaths) -> None:
    """Up: the API answers and clients find it; down: the leak check is empty, the data is still there."""
    report = up(quick(paths))
    note = json.loads(paths.node_json.read_text())
    assert note == {"node": paths.name, "url": report.url, "token_path": str(paths.token)}
    assert version_at(report.url) is not None
    assert survey(paths).state == "whole"
    ended = down(paths)
    assert (ended.was_up, ended.stopped) == (True, 0)
    assert find_leaks(paths) == []
    assert paths.token.exists() and not paths.pool_image.exists()


def test_files_admit_only_root(paths: NodePaths) -> None:
    """Token, note and sockets are root's alone unless a group is named."""
    up(quick(paths))
    for path in (paths.token, paths.node_json, paths.runtime_socket, paths.edge_socket):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_group_may_read_token_and_note(paths: NodePaths) -> None:
    """With --group its members can read what a client needs, and nothing else."""
    import grp

    group = grp.getgrgid(1)
    up(UpOptions(paths=paths, port=0, pool_mib=512, group=group.gr_name))
    for path in (paths.token, paths.node_json):
        assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (1, 0o640)
    assert stat.S_IMODE(paths.iam_db.stat().st_mode) == 0o600


def test_second_up_is_refused(own_node: RunningNode) -> None:
    """A whole node is not touched: the error says where it is, its parts keep their PIDs."""
    before = {name: service.pid for name, service in own_node.services().items()}
    with pytest.raises(Conflict, match="up already") as caught:
        up(quick(own_node.paths))
    assert own_node.url in str(caught.value)
    assert {name: service.pid for name, service in own_node.services().items()} == before


def test_down_twice_is_no_error(paths: NodePaths) -> None:
    """Taking down what is not up sweeps, and says that it was not up."""
    up(quick(paths))
    assert down(paths).was_up
    assert not down(paths).was_up


def test_second_operation_at_the_same_time_is_refused(paths: NodePaths) -> None:
    """While one ``up`` or ``down`` works, another is refused at once instead of mixing with it."""
    with operation(paths), pytest.raises(Conflict, match="at work"):
        up(quick(paths))


def test_stale_sockets_do_not_matter(paths: NodePaths) -> None:
    """Sockets that a dead node left behind are made anew."""
    paths.run.mkdir(parents=True)
    for path in (paths.keeper_socket, paths.runtime_socket, paths.edge_socket):
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        left.bind(str(path))
        left.close()
    up(quick(paths))
    assert survey(paths).state == "whole"


def test_port_in_use_is_named(paths: NodePaths) -> None:
    """The error names the address and the flag; nothing of the node stays."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"127.0.0.1:{port} is in use") as caught:
            up(quick(paths, port=port))
    assert "--port" in (caught.value.remedy or "")
    assert find_leaks(paths) == []


@pytest.mark.parametrize(
    "text", ["port = 70000", "max_sandboxes = 0", "max_sandboxes = 5000", "colour = 1", "port = ["]
)
def test_bad_settings_are_refused(paths: NodePaths, text: str) -> None:
    """A wrong settings file is the caller's fault and starts nothing."""
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text(text)
    with pytest.raises(InvalidArgument):
        up(UpOptions(paths=paths, port=None if "port" in text else 0))
    assert find_leaks(paths) == []


def test_catalogue_of_a_later_dsec_is_refused_untouched(paths: NodePaths) -> None:
    """Its format is named with what to do, and nothing was started; node.db of another format is begun anew."""
    paths.data.mkdir(parents=True)
    write_format(paths.catalogue_db, 9)
    with pytest.raises(Unsupported, match=r"catalogue\.db has format 9") as refused:
        up(quick(paths))
    assert refused.value.remedy and refused.value.phase == "machine"
    assert format_of(paths.catalogue_db) == 9 and find_leaks(paths) == []
    paths.catalogue_db.unlink()
    write_format(paths.node_db, 9)
    said: list[str] = []
    up(quick(paths), said.append)
    assert survey(paths).state == "whole" and format_of(paths.node_db) == FORMATS["node.db"]
    assert any("node.db has format 9" in line for line in said)


def test_edge_that_cannot_start_says_why_in_one_line(paths: NodePaths) -> None:
    """A catalogue that no edge can read: `dsec up` gives the edge's own last sentence, and leaves nothing."""
    paths.data.mkdir(parents=True)
    db = sqlite3.connect(paths.catalogue_db)
    db.execute("CREATE TABLE images (oddity TEXT)")
    db.close()
    with pytest.raises(NodeError, match=r"the node's edge does not start: catalogue\.db has another table 'images'"):
        up(quick(paths))
    assert find_leaks(paths) == []


def test_same_name_in_another_place_is_refused(own_node: RunningNode, tmp_path: Path) -> None:
    """Cgroups go by name: a twin is refused, by ``down`` too, and the first node stays whole."""
    twin = NodePaths(own_node.paths.name, Path(tempfile.mkdtemp(prefix="dsec-", dir="/tmp")))
    try:
        with pytest.raises(Conflict, match="runs already"):
            up(quick(twin))
        with pytest.raises(Conflict, match="runs already"):
            down(twin)
    finally:
        shutil.rmtree(str(twin.root))
    assert survey(own_node.paths).state == "whole"


@pytest.mark.anyio
async def test_dead_keeper_is_repaired(own_node: RunningNode) -> None:
    """After the keeper's death ``up`` sweeps and starts anew; the old sandbox is lost, and new ones can be made."""
    async with own_node.client() as client:
        old = await client.sandbox("dsec/debian:12")
    own_node.kill("keeper")
    report = await asyncio.to_thread(up, UpOptions(paths=own_node.paths))
    assert report.repaired is not None
    async with RunningNode(paths=own_node.paths, url=report.url, token=own_node.token).client() as client:
        assert (await client.attach(old.id).info()).state == "lost"
        async with client.sandbox("dsec/debian:12") as sandbox:
            assert (await sandbox.run_shell("echo alive")).stdout == "alive\n"


@pytest.mark.anyio
async def test_live_sandboxes_need_a_yes(own_node: RunningNode) -> None:
    """Without a yes ``down`` changes nothing: the sandbox still works, and creates are admitted."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        with pytest.raises(Conflict, match="live sandboxes: 1"):
            await asyncio.to_thread(down, own_node.paths)
        assert (await sandbox.exec("true")).ok
        async with client.sandbox("dsec/debian:12") as another:
            assert (await another.exec("true")).ok


@pytest.mark.anyio
async def test_down_in_the_middle_of_creates(own_node: RunningNode) -> None:
    """Creates under way when ``down`` begins end made (and stopped) or refused by a typed error; nothing is left."""
    async with own_node.client() as client:

        async def create() -> DSecError | None:
            try:
                await client.sandbox("dsec/debian:12", deadline_s=20)
            except DSecError as error:
                return error
            return None

        tasks = [asyncio.create_task(create()) for _ in range(40)]
        await asyncio.to_thread(wait_until, lambda: len(own_node.live_sandboxes()) > 2, "some sandboxes are made")
        report = await asyncio.to_thread(down, own_node.paths, confirm=lambda _: True)
        outcomes = await asyncio.gather(*tasks)
    assert report.stopped > 0
    assert all(error is None or isinstance(error, DSecError) for error in outcomes)
    assert find_leaks(own_node.paths) == []


def test_up_without_room_says_so(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk too full for a pool is refused before anything starts."""
    usage = shutil.disk_usage("/tmp")._replace(free=100 << 20)
    monkeypatch.setattr("dsec.node.prepare.shutil.disk_usage", lambda _: usage)
    paths.settings.parent.mkdir(parents=True)
    with pytest.raises(NodeError, match="too little"):
        up(UpOptions(paths=paths, port=0))
    assert find_leaks(paths) == []
