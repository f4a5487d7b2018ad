"""Asking the layer holder whether it is there."""

from __future__ import annotations

import socket

import msgspec

from dsec.node.paths import NodePaths

__all__ = ["holder_answers"]

_VERSION = 2
_LONGEST = 64 << 10


def holder_answers(paths: NodePaths, timeout_s: float = 5) -> bool:
    """Whether it says hello on its socket (``crates/proto/src/loading.rs``)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        ours.settimeout(timeout_s)
        try:
            connection.connect(str(paths.holder_socket))
            socket.send_fds(connection, [b"\0"], [theirs.fileno()])
            theirs.close()
            ours.send(msgspec.msgpack.encode({"hello": {"version": _VERSION}}))
            answer = msgspec.msgpack.decode(ours.recv(_LONGEST))
        except (OSError, msgspec.DecodeError):
            return False
    return bool(answer == {"hello": {"version": _VERSION}})
