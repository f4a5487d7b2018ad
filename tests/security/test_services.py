"""The node's own processes: whose they are, what the kernel lets them do, and what was taken from them."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest

import dsec
from dsec.node.config import load_config
from dsec.node.landlock import OLDEST_VERSION, landlock_version
from dsec.node.services import apiserver_uid, edge_uid, fetcher_uid, proxy_uid
from dsec.testing.node import RunningNode, private_node, wait_until

from .inside import IMAGE
from .subverted import Subverted, subverted

pytestmark = pytest.mark.node

needs_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers and registers of x86-64")
CLOSE, SOCKET, LISTEN, OPENAT = 3, 41, 50, 257
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


def has_a_filter(node: RunningNode, part: str) -> None:
    """Assert that a part has given up system calls."""
    wait_until(lambda: status(node, part)["Seccomp"] == "2", f"{part} has a filter")


def starts_nothing(held: Subverted) -> None:
    """Assert that a process is refused programs, processes, other processes, namespaces, users, and new code."""
    null = bytes(8)
    calls: dict[str, tuple[int, *tuple[int | bytes, ...]]] = {
        "execve": (59, b"/bin/true", null, null), "execveat": (322, -100, b"/bin/true", null, null, 0),
        "fork": (57,), "vfork": (58,), "clone3": (435, null, 88), "ptrace": (101, 16, 1), "pidfd_open": (434, 1, 0),
        "process_vm_readv": (310, 1, null, 0, null, 0, 0), "kill": (62, 1, 0), "setns": (308, 0, 0),
        "unshare": (272, 0x10000000), "mount": (165, b"none", b"/mnt", b"tmpfs", 0, 0), "bpf": (321, 0, null, 8),
        "io_uring_setup": (425, 1, null), "setuid": (105, 0), "mknodat": (259, -100, b"/tmp/x", 0o10600, 0),
    }  # fmt: skip
    for name, (number, *arguments) in calls.items():
        assert held.call(number, *arguments) == -errno.ENOSYS, name
    assert held.call(56, signal.SIGCHLD, 0, 0, 0, 0) == -errno.EPERM
    assert held.call(9, 0, 4096, 5, 0x22, -1, 0) == -errno.EPERM


def test_apiserver_and_proxy_are_nobody(node: RunningNode) -> None:
    """Each has a user of its own, which is not root, not the other's, and no sandbox's."""
    config = load_config(node.paths.config_json)
    uids = {"apiserver": apiserver_uid(config), "proxy": proxy_uid(config)}
    assert len(set(uids.values())) == 2 and all(uid < config.id_block for uid in uids.values())
    for part, uid in uids.items():
        has_become(node, part, uid)
        has_a_filter(node, part)


@needs_x86
@pytest.mark.anyio
async def test_a_subverted_proxy_starts_nothing_and_reads_no_file(client: dsec.DSecClient, node: RunningNode) -> None:
    """The running proxy, made to call: no program, process, other process or namespace, no file of the machine's but
    those of names, no local socket, no listener of its own; it goes on serving."""
    serve = (
        "python3 -m http.server --bind 127.0.0.1 8000 > /dev/null 2>&1 &\n"
        "until 2> /dev/null exec 3<> /dev/tcp/127.0.0.1/8000; do sleep 0.05; done"
    )
    async with client.sandbox(IMAGE, memory_mib=256) as sandbox, aiohttp.ClientSession() as http:
        await sandbox.exec("bash", "-c", serve, check=True)
        url = await sandbox.expose(8000)
        with subverted(node.services()["proxy"].pid) as proxy:
            starts_nothing(proxy)
            assert proxy.call(SOCKET, 1, 1, 0) == -errno.EPERM
            assert proxy.call(LISTEN, 4, 1) == -errno.ENOSYS
            if landlock_version() >= OLDEST_VERSION:
                for path in (b"/proc/version", b"/proc/self/status", sys.executable.encode()):
                    assert proxy.call(OPENAT, -100, path, 0) == -errno.EACCES, path
            assert (names := proxy.call(OPENAT, -100, b"/etc/hosts", 0)) > 2
            assert proxy.call(CLOSE, names) == 0
        async with http.get(f"http://{url.connect}/", headers=url.headers) as answer:
            assert answer.status == 200


@needs_x86
def test_subverted_holder_and_fetcher_start_nothing(store: Path, tmp_path: Path) -> None:
    """The fetcher is nobody, the holder root of files alone; neither starts a program or calls anybody else."""
    with private_node(store, settings=f'[stores.far]\nurl = "file://{tmp_path}"\n') as node:
        config = load_config(node.paths.config_json)
        if config.reading != "filled":
            pytest.skip(config.reading_why)
        has_become(node, "fetcher", fetcher_uid(config))
        for part in ("holder", "fetcher"):
            has_a_filter(node, part)
            found = status(node, part)
            assert {name: int(found[name], 16) for name in SETS} == dict.fromkeys(SETS, 0), part
            assert found["NoNewPrivs"] == "1"
            with subverted(node.services()[part].pid) as held:
                starts_nothing(held)
                assert held.call(LISTEN, 4, 1) == -errno.ENOSYS
                family = socket.AF_UNIX if part == "fetcher" else socket.AF_INET
                assert held.call(SOCKET, family, 1, 0) == -errno.EPERM


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


def test_nothing_that_another_user_reads_holds_a_sandboxs_bytes(node: RunningNode) -> None:
    """The pool has all that sandboxes write, in a file whose path anybody can guess: only root opens it. Of all other
    files that a user of the machine can come to, it reads settings alone.
    """
    settings = {path.name for path in (node.paths.config_json, node.paths.runtime_json, node.paths.proxy_json)}
    readable = {path.name for root in (node.paths.run, node.paths.data) for path in _readable(root)}
    assert readable <= settings | {node.paths.pool_image.with_suffix(".boot").name}
    assert stat.S_IMODE(node.paths.pool_image.stat().st_mode) == 0o600


def test_a_pool_that_everybody_could_read_is_shut(node: RunningNode) -> None:
    """Earlier versions made it so; a runtime of this one that takes it over takes that back."""
    node.paths.pool_image.chmod(0o644)
    node.restart("runtime")
    assert stat.S_IMODE(node.paths.pool_image.stat().st_mode) == 0o600


def _readable(folder: Path) -> list[Path]:
    """Regular files below a folder that one who is neither its owner nor in its group reads, knowing their names."""
    found = []
    for path in folder.iterdir():
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # of a node that works
        if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
            found += _readable(path)
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            found.append(path)
    return found
