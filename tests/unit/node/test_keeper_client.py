"""The control side of keeper.sock, against a scripted keeper."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsec.errors import NodeError, ProtocolError
from dsec.node.keeper_client import KeeperControl, KeeperRefusal

Keeper = Callable[[list[Any]], Path]
HELLO = {"Ok": {"hello": {"version": 1, "pid": 41}}}


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """Starts a keeper that answers the requests in turn; None hangs up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "keeper.sock"))
    listener.listen()
    threads: list[threading.Thread] = []

    def serve(results: list[Any]) -> None:
        connection, _ = listener.accept()
        with connection:
            for result in results:
                request = msgspec.msgpack.decode(connection.recv(65536))
                if result is None:
                    return
                reply = {"reply": {"id": request["id"], "result": result}}
                connection.send(msgspec.msgpack.encode(reply))

    def start(results: list[Any]) -> Path:
        threads.append(threading.Thread(target=serve, args=(results,)))
        threads[0].start()
        return tmp_path / "keeper.sock"

    yield start
    for thread in threads:
        thread.join()
    listener.close()


def test_services_are_read(keeper: Keeper) -> None:
    """The states come in the keeper's order, unknown fields ignored."""
    state = {"name": "edge", "pid": 7, "restarts": 1, "last_end": None, "addresses": ["unix:/e"], "newer": 1}
    with KeeperControl(keeper([HELLO, {"Ok": {"services": [state]}}])) as control:
        assert control.pid == 41
        (service,) = control.services()
    assert (service.name, service.pid, service.restarts, service.addresses) == ("edge", 7, 1, ["unix:/e"])


def test_refusal_carries_the_keepers_word(keeper: Keeper) -> None:
    """A refused shutdown says ``live`` as data."""
    refused = {"Err": {"code": "live", "message": "3 objects live", "failure": None}}
    with KeeperControl(keeper([HELLO, refused])) as control, pytest.raises(KeeperRefusal) as caught:
        control.shutdown()
    assert caught.value.refusal == "live"


def test_hanging_up_is_a_node_error(keeper: Keeper) -> None:
    """A keeper that dies in the middle is the node's fault, retryable."""
    with KeeperControl(keeper([HELLO, None])) as control, pytest.raises(NodeError, match="hung up"):
        control.services()


def test_nonsense_is_a_protocol_error(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is no reply is refused, not guessed at."""
    with KeeperControl(keeper([HELLO])) as control, pytest.raises(ProtocolError):
        control._answer({"ended": {}})


def test_no_keeper_is_a_node_error(tmp_path: Path) -> None:
    """A stale or missing socket says how to get a node."""
    with pytest.raises(NodeError, match="no keeper answers") as caught:
        KeeperControl(tmp_path / "keeper.sock")
    assert "dsec up" in str(caught.value)
