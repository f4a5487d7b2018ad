"""The node's own processes: whose they are, what the kernel lets them do, and what was taken from them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dsec.node.config import load_config
from dsec.node.landlock import OLDEST_VERSION, landlock_version
from dsec.node.services import apiserver_uid, edge_uid, proxy_uid
from dsec.testing.node import RunningNode, private_node, wait_until

from .inside import IMAGE

pytestmark = pytest.mark.node

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status(node: RunningNode, part: str) -> dict[str, str]:
    """What /proc says of a part, by name."""
    lines = Path(f"/proc/{node.services()[part].pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def has_become(node: RunningNode, part: str, uid: int) -> None:
    """Assert that a part is nobody: its user, no group, no capability in any set, no new privileges, no tracing."""
    wait_until(lambda: status(node, part)["Uid"].split()[0] != "0", f"{part} has given up root")
    found = status(node, part)
    assert found["Uid"].split() == found["Gid"].split() == [str(uid)] * 4
    assert found["Groups"] == ""
    assert {name: int(found[name], 16) for name in SETS} == dict.fromkeys(SETS, 0)
    assert found["NoNewPrivs"] == "1"
    # What is not dumpable belongs to root in /proc, and to nobody else of its user.
    assert Path(f"/proc/{node.services()[part].pid}/mem").stat().st_uid == 0


def test_apiserver_and_proxy_are_nobody(node: RunningNode) -> None:
    """Each has a user of its own, which is not root, not the other's, and no sandbox's."""
    config = load_config(node.paths.config_json)
    uids = {"apiserver": apiserver_uid(config), "proxy": proxy_uid(config)}
    assert len(set(uids.values())) == 2 and all(uid < config.id_block for uid in uids.values())
    for part, uid in uids.items():
        has_become(node, part, uid)
    assert status(node, "apiserver")["Seccomp"] == "2"


def test_the_edge_is_root_of_files_and_of_nothing_else(node: RunningNode) -> None:
    """Its user is its own; only what it does to files is done as root, with the one capability that goes with it."""
    uid = edge_uid(load_config(node.paths.config_json))
    wait_until(lambda: status(node, "edge")["Seccomp"] == "2", "the edge has given up root")
    found = status(node, "edge")
    assert found["Uid"].split() == found["Gid"].split() == [str(uid)] * 3 + ["0"]
    assert found["Groups"] == ""
    overrides = {"CapPrm": 1 << 1, "CapEff": 1 << 1}
    assert {name: int(found[name], 16) for name in SETS} == dict.fromkeys(SETS, 0) | overrides
    assert found["NoNewPrivs"] == "1"
    assert Path(f"/proc/{node.services()['edge'].pid}/mem").stat().st_uid == 0


def test_all_threads_of_the_edge_have_given_up_the_same(node: RunningNode) -> None:
    """Capabilities, user, filter are each thread's own: none has been forgotten."""
    pid = node.services()["edge"].pid
    wait_until(lambda: status(node, "edge")["Seccomp"] == "2", "the edge has given up root")
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "status").read_text()
        lines = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
        assert (lines["CapEff"], lines["Seccomp"], lines["NoNewPrivs"]) == (["0000000000000002"], ["2"], ["1"])
        assert lines["Uid"][0] == str(edge_uid(load_config(node.paths.config_json)))


def test_this_kernel_confines_the_edges_writes(node: RunningNode) -> None:
    """It has what it takes, and the edge does not say that it lacks it."""
    assert landlock_version() >= OLDEST_VERSION
    assert "no Landlock" not in (node.paths.logs / "edge.log").read_text()


def test_the_apiserver_holds_no_way_to_other_files(node: RunningNode) -> None:
    """Of files it has its log and the database of tokens open, and no directory; it stands among the sockets."""
    pid = node.services()["apiserver"].pid
    links = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    files = {link for link in links if link.startswith("/") and link != "/dev/null"}
    database = str(node.paths.iam_db)
    assert files == {str(node.paths.logs / "apiserver.log"), database, f"{database}-wal", f"{database}-shm"}
    assert Path(f"/proc/{pid}/cwd").readlink() == node.paths.run


@pytest.mark.anyio
async def test_it_is_nobody_again_after_its_death(store: Path) -> None:
    """Killed, it is started anew by the keeper, gives up the same, and serves tokens, calls and streams as before."""
    with private_node(store) as node:
        uid = apiserver_uid(load_config(node.paths.config_json))
        async with node.client() as client:
            made = await client.tokens.create(name="kept")
            node.kill("apiserver")
            async with client.sandbox(IMAGE, memory_mib=256, disk_mib=256) as sandbox:
                assert (await sandbox.exec("echo", "served")).stdout == "served\n"
            assert made.id in [each.id for each in await client.tokens.list()]
            await client.tokens.revoke(made.id)
        has_become(node, "apiserver", uid)
        node.restart("apiserver")
        has_become(node, "apiserver", uid)


def test_databases_are_roots(node: RunningNode) -> None:
    """Records have tokens of ports and environment variables in them: no other user of the machine reads them."""
    for path in node.paths.data.glob("*.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_uid == 0, path
