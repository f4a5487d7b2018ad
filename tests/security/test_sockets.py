"""The node's sockets and files, looked at and tried by other users of the machine."""

from __future__ import annotations

import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dsec.node.config import load_config
from dsec.node.services import apiserver_uid, edge_uid, fetcher_uid
from dsec.testing.node import RunningNode, private_node

pytestmark = pytest.mark.node

pack = msgspec.msgpack.encode


def test_sockets_and_files_are_roots(node: RunningNode) -> None:
    """The sockets of keeper, runtime and proxy, the token, the databases and the output are root's alone; those that
    the apiserver calls are its own user's, and of no group."""
    paths = node.paths
    apiserver = apiserver_uid(load_config(paths.config_json))
    sockets = dict.fromkeys((paths.keeper_socket, paths.runtime_socket, paths.proxy_socket), 0)
    sockets |= dict.fromkeys((paths.edge_socket, paths.ports_socket), apiserver)
    for path, owner in sockets.items():
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600 and found.st_uid == owner, path
    for path in (node.paths.token, node.paths.iam_db, node.paths.node_json):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for path in (node.paths.output, node.paths.layers, node.paths.logs):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def asked(path: Path, uid: int) -> str:
    """What a user gets of a socket, modes being opened up meanwhile: "refused …" or "got …"."""
    kind = "SOCK_SEQPACKET" if path.name == "keeper.sock" else "SOCK_STREAM"
    said = "b'GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\ndsec-principal: admin\\r\\n\\r\\n'"
    if path.name == "runtime.sock":
        frame = pack([1, 0, "stats", {}])
        said = repr(len(frame).to_bytes(4, "big") + frame)
    program = (
        f"import os, socket\nos.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        f"s = socket.socket(socket.AF_UNIX, socket.{kind}); s.settimeout(5)\n"
        f"try:\n s.connect({str(path)!r}); s.send({said}); print('got', s.recv(100))\n"
        "except OSError as error: print('refused', error)"
    )
    with ExitStack() as undo:
        for each, more in ((path, 0o666), *((parent, 0o001) for parent in path.parents)):
            before = stat.S_IMODE(each.stat().st_mode)
            if before | more != before:
                each.chmod(before | more)
                undo.callback(each.chmod, before)
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
        )
    return result.stdout.strip()


SOCKETS = ("runtime.sock", "edge.sock", "keeper.sock", "proxy.sock", "ports.sock")


@pytest.mark.parametrize("name", SOCKETS)
def test_sockets_look_at_who_calls(node: RunningNode, name: str) -> None:
    """Another user who reaches a socket all the same (mode and directory opened for the test) is not answered."""
    # Peer credentials; the modes are only the first fence.
    answer = asked(node.paths.run / name, 65534)
    assert answer.startswith("refused") or answer == "got b''" or " 40" in answer, answer


@pytest.mark.parametrize("name", SOCKETS)
def test_the_apiservers_user_is_admitted_where_it_calls_and_nowhere_else(node: RunningNode, name: str) -> None:
    """To the edge and to the proxy's ports; to the keeper, the runtime and the proxy's own it is a stranger."""
    answer = asked(node.paths.run / name, apiserver_uid(load_config(node.paths.config_json)))
    if name in ("edge.sock", "ports.sock"):
        assert answer.startswith("got b'HTTP/1.1"), answer
    else:
        assert answer.startswith("refused") or answer == "got b''", answer


@pytest.mark.parametrize("name", SOCKETS)
def test_the_edges_user_is_admitted_to_the_runtime_and_to_itself(node: RunningNode, name: str) -> None:
    """It is a stranger to the keeper, which would run anything, and to the proxy."""
    answer = asked(node.paths.run / name, edge_uid(load_config(node.paths.config_json)))
    if name in ("runtime.sock", "edge.sock"):
        assert answer.startswith("got b") and answer != "got b''", answer
    else:
        assert answer.startswith("refused") or answer == "got b''", answer


def test_the_sockets_of_layers_on_demand_admit_root_alone(store: Path, tmp_path: Path) -> None:
    """Who could say what a layer's bytes are: the node's own unprivileged users are strangers there as any other."""
    with private_node(store, settings=f'[stores.far]\nurl = "file://{tmp_path}"\n') as node:
        config = load_config(node.paths.config_json)
        if config.reading != "filled":
            pytest.skip(config.reading_why)
        for path in (node.paths.holder_socket, node.paths.fetcher_socket):
            found = path.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, 0), path
            for uid in (edge_uid(config), apiserver_uid(config), fetcher_uid(config), 65534):
                answer = asked(path, uid)
                assert answer.startswith("refused") or answer == "got b''", (path, uid, answer)
