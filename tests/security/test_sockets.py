"""The node's sockets and files, looked at and tried by other users of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import msgspec
import pytest

from dsec.testing.node import RunningNode

pytestmark = pytest.mark.node

pack = msgspec.msgpack.encode


def test_sockets_and_files_are_roots(node: RunningNode) -> None:
    """The sockets of keeper, runtime and edge, the token, the databases and the output are root's alone."""
    paths = node.paths
    sockets = (paths.keeper_socket, paths.runtime_socket, paths.edge_socket, paths.proxy_socket, paths.ports_socket)
    for path in sockets:
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600 and found.st_uid == 0, path
    for path in (node.paths.token, node.paths.iam_db, node.paths.node_json):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for path in (node.paths.output, node.paths.layers, node.paths.logs):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("name", ["runtime.sock", "edge.sock", "keeper.sock", "proxy.sock", "ports.sock"])
def test_sockets_look_at_who_calls(node: RunningNode, name: str) -> None:
    """Another user who reaches a socket all the same (mode and directory opened for the test) is not answered."""
    # Peer credentials; the modes are only the first fence.
    path = node.paths.run / name
    before = stat.S_IMODE(path.stat().st_mode)
    kind = "SOCK_SEQPACKET" if name == "keeper.sock" else "SOCK_STREAM"
    said = "b'GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\ndsec-principal: admin\\r\\n\\r\\n'"
    if name == "runtime.sock":
        frame = pack([1, 0, "stats", {}])
        said = repr(len(frame).to_bytes(4, "big") + frame)
    program = (
        f"import os, socket\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"s = socket.socket(socket.AF_UNIX, socket.{kind}); s.settimeout(5)\n"
        f"try:\n s.connect({str(path)!r}); s.send({said}); print('got', s.recv(100))\n"
        "except OSError as error: print('refused', error)"
    )
    path.chmod(0o666)
    parents = [each for each in path.parents if not each.stat().st_mode & 0o001]
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in parents}
    try:
        for each in parents:
            each.chmod(modes[each] | 0o001)
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
        )
    finally:
        path.chmod(before)
        for each in parents:
            each.chmod(modes[each])
    answer = result.stdout.strip()
    assert answer.startswith("refused") or answer == "got b''" or " 40" in answer, answer
    assert os.geteuid() == 0
