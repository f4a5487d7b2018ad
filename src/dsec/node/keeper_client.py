"""The CLI's side of ``keeper.sock``: short control connections (``crates/proto/src/keeper.rs``)."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from dsec.errors import Conflict, NodeError, ProtocolError
from dsec.node.services import Service

__all__ = ["KeeperControl", "KeeperRefusal", "ServiceState"]

VERSION = 1
_MAX_PACKET = 64 * 1024


class ServiceState(msgspec.Struct, frozen=True):
    """A process that the keeper starts: ``pid`` 0 while it is down."""

    name: str
    pid: int
    restarts: int
    addresses: list[str]
    last_end: dict[str, Any] | None = None


class KeeperRefusal(Conflict):
    """The keeper refused; ``details["refusal"]`` is its word (``live``, ``invalid``, …)."""

    @property
    def refusal(self) -> str:
        """The keeper's word."""
        return str(self.details["refusal"])


class KeeperControl:
    """One control connection. Raises NodeError when no keeper answers, KeeperRefusal when it refuses."""

    def __init__(self, path: Path, *, timeout_s: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout_s)
        self._last = 0
        self.pid = 0
        try:
            self._socket.connect(str(path))
            self.pid = self._call({"hello": {"version": VERSION, "role": "control"}})["hello"]["pid"]
        except OSError as error:
            self._socket.close()
            raise NodeError(f"no keeper answers on {path}: {error.strerror}", remedy="Run `dsec up`") from None
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> KeeperControl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def services(self) -> list[ServiceState]:
        """State of the services, in the order of their start."""
        return msgspec.convert(self._call("services")["services"], list[ServiceState])

    def objects(self) -> list[str]:
        """IDs of everything that the keeper holds for the runtime: processes, and descriptors without one."""
        found: list[str] = []
        while True:
            page = self._call({"list": {"after": found[-1] if found else None}})["objects"]
            found += [str(one["object_id"]) for one in page["objects"]]
            if not page["more"]:
                return found

    def restart(self, service: str, definition: Service) -> None:
        """End a service and start it anew by the new definition; ``keeper``: exec in place."""
        self._call({"restart": {"service": service, "definition": msgspec.to_builtins(definition)}})

    def shutdown(self) -> None:
        """End the services in reverse order, then the keeper; refused (``live``) while objects live."""
        self._call("shutdown")

    def wait_closed(self, timeout_s: float) -> bool:
        """Whether the keeper hung up within the time."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(_MAX_PACKET) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def _call(self, call: Any) -> Any:
        self._last += 1
        try:
            self._socket.send(msgspec.msgpack.encode({"id": self._last, "call": call}))
            raw = self._socket.recv(_MAX_PACKET)
        except TimeoutError:
            raise NodeError("the keeper does not answer", remedy="Run `dsec up`, which repairs it") from None
        if not raw:
            raise NodeError("the keeper hung up", remedy="Run `dsec up`, which repairs it")
        return self._answer(msgspec.msgpack.decode(raw))

    def _answer(self, message: Any) -> Any:
        try:
            reply = message["reply"]
            result = reply["result"]
        except (KeyError, TypeError):
            raise ProtocolError(f"the keeper sent no reply: {message!r}") from None
        if reply["id"] != self._last:
            raise ProtocolError(f"the keeper answered request {reply['id']}, not {self._last}")
        if "Ok" in result:
            return result["Ok"]
        refusal = result["Err"]
        raise KeeperRefusal(f"the keeper refuses: {refusal['message']}", refusal=refusal["code"])
