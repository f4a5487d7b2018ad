"""What this process must not leave behind, and the way to end it without an event loop.

The second Ctrl-C leaves ``asyncio.run`` before any ``async with`` has finished. What then is still registered here is
stopped at exit, over plain blocking HTTP. A forked child owns nothing of its parent's.
"""

from __future__ import annotations

import atexit
import http.client
import os
import time
from urllib.parse import quote, urlsplit

from dsec.client.discovery import Address

__all__ = ["Owned", "disown", "own_create", "own_exec", "own_job", "own_sandbox", "stop_owned"]

Owned = tuple[Address, str, str, bytes]
"""(where, method, path, body): the request that ends it."""

_owned: set[Owned] = set()


def own_create(address: Address, key: str) -> Owned:
    """A create in flight."""
    return _own((address, "DELETE", f"/v1/creates/{quote(key, safe='')}", b""))


def own_sandbox(address: Address, sandbox_id: str) -> Owned:
    """A sandbox inside its ``async with``."""
    return _own((address, "POST", f"/v1/sandboxes/{sandbox_id}/stop", b"{}"))


def own_job(address: Address, name: str) -> Owned:
    """A job that is held."""
    return _own((address, "POST", f"/v1/jobs/{quote(name, safe='')}/stop", b""))


def own_exec(address: Address, sandbox_id: str, exec_id: str) -> Owned:
    """An ``exec`` or ``run_shell`` in flight."""
    return _own((address, "POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/kill", b'{"grace_s": 0}'))


def _own(owned: Owned) -> Owned:
    _owned.add(owned)
    return owned


def disown(owned: Owned) -> None:
    """It has ended, or somebody else answers for it."""
    _owned.discard(owned)


def stop_owned(limit_s: float = 5.0) -> int:
    """End everything that this process owns, blocking at most about ``limit_s``; returns how many did not confirm.

    Needs no event loop and no running thread, so it may be called from a signal's last way out.
    """
    end = time.monotonic() + limit_s
    failed = 0
    for owned in list(_owned):
        left = end - time.monotonic()
        if left <= 0 or not _end(owned, left):
            failed += 1
        _owned.discard(owned)
    return failed


def _end(owned: Owned, limit_s: float) -> bool:
    address, method, path, body = owned
    parts = urlsplit(address.url)
    context = address.context()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit_s)
    if context is not None:
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=limit_s, context=context)
    headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"} | address.headers
    try:
        connection.request(method, parts.path + path, body, headers)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


atexit.register(stop_owned)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_owned.clear)
