"""What state a node is in: down, whole, or half-dead; and the lock that keeps operations apart."""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from dsec.errors import Conflict, DSecError, NodeError, NotFound
from dsec.node.config import load_config
from dsec.node.holder_client import holder_answers
from dsec.node.keeper_client import KeeperControl, ServiceState
from dsec.node.local_calls import EdgeCalls, RuntimeCalls
from dsec.node.paths import NodePaths

__all__ = ["Survey", "is_locked", "node_url", "operation", "part_answers", "survey", "url_of", "version_at"]


class Survey(msgspec.Struct, frozen=True):
    """``down``: no keeper. ``whole``: every part runs and the API answers. ``broken``: anything between."""

    state: Literal["down", "whole", "broken"]
    services: list[ServiceState]
    url: str | None = None
    fault: str | None = None


def survey(paths: NodePaths) -> Survey:
    """Look at the node, changing nothing."""
    if not is_locked(paths.lock):
        return Survey("down", [])
    try:
        with KeeperControl(paths.keeper_socket, timeout_s=5) as keeper:
            services = keeper.services()
    except NodeError as error:
        return Survey("broken", [], fault=error.message)
    url = url_of(services, scheme_of(paths))
    missing = [service.name for service in services if service.pid == 0]
    if missing:
        return Survey("broken", services, url, f"not running: {', '.join(missing)}")
    silent = [service.name for service in services if not part_answers(paths, service.name)]
    if silent:
        return Survey("broken", services, url, f"not answering: {', '.join(silent)}")
    return Survey("whole", services, url)


def part_answers(paths: NodePaths, part: str) -> bool:
    """Whether the part serves its socket. Listening sockets outlive a restart: a call waits for the successor."""
    try:
        if part == "runtime":
            with RuntimeCalls(paths.runtime_socket, timeout_s=5):
                return True
        if part == "proxy":
            return _proxy_answers(paths)
        if part == "holder":
            return holder_answers(paths)
        if part == "fetcher":
            # It serves one holder at a time, which says itself when it has no fetcher.
            with KeeperControl(paths.keeper_socket, timeout_s=5) as keeper:
                return any(service.name == part and service.pid for service in keeper.services())
        if part == "edge":
            EdgeCalls(paths.edge_socket, timeout_s=5).call("GET", "/v1/status")
            return True
        with KeeperControl(paths.keeper_socket, timeout_s=5) as keeper:
            url = url_of(keeper.services(), scheme_of(paths))
        return part == "keeper" or (url is not None and version_at(url) is not None)
    except NodeError:
        return False
    except DSecError:  # an answer all the same
        return part == "edge"


def _proxy_answers(paths: NodePaths) -> bool:
    """Whether it says something on the apiserver's socket: that a request without a port's host is misdirected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(paths.ports_socket))
            connection.sendall(b"GET / HTTP/1.1\r\nhost: dsec\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 421"
        except OSError:
            return False


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock: ``paths.lock`` the keeper's, ``paths.operation_lock`` an operation's."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def scheme_of(paths: NodePaths) -> str:
    """``https`` where the settings in force give the API TLS."""
    try:
        return "https" if load_config(paths.config_json).has_tls else "http"
    except (FileNotFoundError, msgspec.DecodeError):
        return "http"


def url_of(services: list[ServiceState], scheme: str) -> str | None:
    """The API's address, from the keeper's own list: with port 0 only the keeper knows it."""
    for service in services:
        for address in service.addresses:
            if service.name == "apiserver" and address.startswith("tcp:"):
                host, _, port = address.removeprefix("tcp:").rpartition(":")
                return f"{scheme}://{_reachable(host)}:{port}"
    return None


def _reachable(host: str) -> str:
    bare = host.strip("[]")
    if bare == "0.0.0.0":
        return "127.0.0.1"
    if bare == "::":
        return "[::1]"
    return f"[{bare}]" if ":" in bare else bare


def version_at(url: str, *, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The answer of ``/v1/version``, or None when there is none."""
    scheme, _, address = url.partition("://")
    if scheme == "https":
        # Whether it lives is asked, and nothing is told: any certificate will do.
        context = ssl._create_unverified_context()  # noqa: S323
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", "/v1/version")
        answer = connection.getresponse()
        body: dict[str, Any] = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return body if answer.status == 200 else None


def node_url(paths: NodePaths) -> str:
    """URL of the node that ``dsec up`` noted; raises NotFound without one."""
    try:
        return str(json.loads(paths.node_json.read_bytes())["url"])
    except FileNotFoundError:
        raise NotFound(f"no node {paths.name!r} runs on this machine", remedy="Run `dsec up`") from None


@contextmanager
def operation(paths: NodePaths) -> Iterator[None]:
    """Hold the node against other ``up``, ``down`` and ``restart``; raises Conflict while another one works."""
    paths.operation_lock.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with paths.operation_lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another `dsec up`, `down` or `restart` of node {paths.name!r} is at work",
                remedy="Wait for it and look with `dsec status`",
            ) from None
        yield
