"""DSecClient: the way to sandboxes."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Self, Unpack
from urllib.parse import quote

import msgspec

from dsec.api import types
from dsec.api.ids import check_sandbox_id
from dsec.api.jobs import JobInfo
from dsec.client.args import SandboxArgs, SandboxFields, args_of
from dsec.client.artefacts import Images, Tokens
from dsec.client.creating import Creating, CreatingMany
from dsec.client.discovery import Address, find_address
from dsec.client.jobs import Job
from dsec.client.layers import Layers
from dsec.client.link import Link
from dsec.client.sandbox import Sandbox
from dsec.client.snapshots import Snapshots
from dsec.errors import DSecError, InvalidArgument, Unsupported

__all__ = ["DSecClient"]

_LIVE = "creating,running,paused"
_inherited: list[object] = []
"""Connections that a forked child has from its parent: kept untouched, for closing them would disturb it."""
_closing: set[asyncio.Task[None]] = set()
_restored: weakref.WeakValueDictionary[tuple[Any, ...], DSecClient] = weakref.WeakValueDictionary()
_restoring = threading.Lock()


class _Connected(NamedTuple):
    """A loop's connections, what closes them with the loop, and what does when the client is held no more."""

    link: Link
    guard: AsyncGenerator[None]
    unheld: weakref.finalize[..., DSecClient]


class _Found(msgspec.Struct, frozen=True):
    sandboxes: list[types.SandboxInfo]


class _Groups(msgspec.Struct, frozen=True):
    groups: list[types.UsageGroup]


class _Jobs(msgspec.Struct, frozen=True):
    jobs: list[JobInfo]


class DSecClient:
    """Opens sandboxes. Makes no connection before it is used.

    ``url`` and ``token``: else ``DSEC_URL`` and ``DSEC_TOKEN``, else the node of this machine (``DSEC_NODE``,
    ``DSEC_ROOT``). One client serves any number of event loops and threads, also after a fork, each with
    connections of its own; it pickles without its token. ``trust``, else ``DSEC_TRUST``: at an https URL, a PEM file
    of authorities, or a certificate's ``sha256:`` fingerprint; else the system's authorities. At most
    ``max_creates_in_flight`` creates are sent at once from each loop.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, project: str | None = None,
        max_creates_in_flight: int = 64, trust: str | None = None,
    ) -> None:  # fmt: skip
        if project is not None:
            raise Unsupported("DSecClient(project=) is not in this version")
        if max_creates_in_flight < 1:
            raise InvalidArgument("max_creates_in_flight must be at least 1")
        self._url = url
        self._token = token
        self._trust = trust
        self._max_creates = max_creates_in_flight
        self._job: tuple[str, int] | None = None
        """In the name of which job everything is asked, and its holder's fencing number."""
        self._found: Address | None = None
        self._pid = os.getpid()
        self._links: dict[asyncio.AbstractEventLoop, _Connected] = {}
        self.images = Images(self)
        self.layers = Layers(self)
        self.snapshots = Snapshots(self)
        self.tokens = Tokens(self)

    def __repr__(self) -> str:
        return f"<DSecClient {self._url or 'of this machine'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        url, trust = self._url, self._trust
        if url is None:
            with suppress(DSecError):
                found = self._address()
                url, trust = found.url, found.trust
        return _restore, (url, self._max_creates, self._job, trust)

    # Its connections

    async def open(self) -> Self:
        """Connect now instead of at first use. Raises NodeError or Denied."""
        await self._link().wire()
        return self

    async def close(self) -> None:
        """Close this event loop's connections. Sandboxes and execs go on; a later call connects again."""
        found = self._links.pop(asyncio.get_running_loop(), None)
        if found is not None:
            found.unheld.detach()
            await found.guard.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _address(self) -> Address:
        if self._found is None:
            self._found = self._find_address()
        return self._found

    def _find_address(self) -> Address:
        found = find_address(self._url, self._token, trust=self._trust)
        return found if self._job is None else replace(found, job=f"{self._job[0]};{self._job[1]}")

    def _in_job(self, name: str, fence: int) -> DSecClient:
        """The same, with connections of its own, in a job's name."""
        client = DSecClient(self._url, self._token, max_creates_in_flight=self._max_creates)
        client._job = (name, fence)
        return client

    def _link(self) -> Link:
        loop = asyncio.get_running_loop()
        found = self._links.get(loop)
        if found is not None and self._pid == os.getpid():
            return found.link
        return self._new_link(loop)

    def _new_link(self, loop: asyncio.AbstractEventLoop) -> Link:
        if self._pid != os.getpid():
            _inherited.append(self._links)
            self._links, self._pid = {}, os.getpid()
        for known in [known for known in self._links if known.is_closed()]:
            self._links.pop(known).unheld.detach()
        self._found = self._find_address()
        link = Link(self._found, self._max_creates)
        guard = _closed_with_loop(link)
        unheld = weakref.finalize(self, _close_later, self._pid, loop, guard)
        unheld.atexit = False
        self._links[loop] = _Connected(link, guard, unheld)
        return link

    # Sandboxes

    def sandbox(
        self, image_or_args: str | SandboxArgs, *, key: str | None = None, deadline_s: float = 120.0,
        on_full: Literal["wait", "raise"] = "wait", **fields: Unpack[SandboxFields],
    ) -> Creating:  # fmt: skip
        """A new sandbox: ``await`` it, or ``async with`` it, which stops it at the end.

        ``fields`` are those of SandboxArgs. ``key``: the same key gives the same sandbox. ``on_full``: wait in the
        node's queue within ``deadline_s``, or raise CapacityError at once. Cancelling withdraws it. Raises
        InvalidArgument, Unsupported, Conflict, ImageError, CapacityError, DeadlineExceeded, NodeError.
        """
        args = args_of(image_or_args, fields)
        return Creating(self, args, key=key, deadline_s=deadline_s, on_full=on_full)

    def sandboxes(
        self, args: SandboxArgs | Sequence[SandboxArgs], n: int | None = None, *, keys: Sequence[str] | None = None,
        gang: bool = False, deadline_s: float = 120.0, on_full: Literal["wait", "raise"] = "wait",
    ) -> CreatingMany:  # fmt: skip
        """Many sandboxes, each as it becomes ready: ``n`` alike, or one for each of a list."""
        if gang:
            raise Unsupported("sandboxes(gang=True) is not in this version")
        if isinstance(args, SandboxArgs):
            asked = [args] * (1 if n is None else n)
        elif n is not None:
            raise InvalidArgument("give n with one SandboxArgs, or a list of them, not both")
        else:
            asked = list(args)
        if keys is not None and (len(keys) != len(asked) or len(set(keys)) != len(keys)):
            raise InvalidArgument(f"{len(asked)} different keys are needed, not {len(set(keys))}")
        chosen: Sequence[str | None] = keys if keys is not None else [None] * len(asked)
        return CreatingMany(
            [
                Creating(self, one, key=key, deadline_s=deadline_s, on_full=on_full)
                for one, key in zip(asked, chosen, strict=True)
            ]
        )

    def attach(self, sandbox_id: str) -> Sandbox:
        """The sandbox of an ID, without asking whether there is one. Raises InvalidArgument for what is no ID."""
        return Sandbox(self, check_sandbox_id(sandbox_id))

    async def get(self, name: str) -> Sandbox:
        """The sandbox of a name (or ID). Raises NotFound."""
        path = f"/v1/sandboxes/{quote(name, safe='')}"
        info = await self._link().ask_patiently("GET", path, types.SandboxInfo)
        return Sandbox(self, info.id, info)

    async def find(
        self, job: str | None = None, labels: Mapping[str, str] | None = None,
        state: types.SandboxState | str | None = None,
    ) -> AsyncIterator[types.SandboxInfo]:  # fmt: skip
        """Sandboxes of the job, with all of the labels and the state (or several, with commas); by default the live.

        ``state="stopped"`` finds those of the last 24 h.
        """
        query = [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        query.append(("state", _LIVE if state is None else str(state)))
        query += [] if job is None else [("job", job)]
        found = await self._link().ask_patiently("GET", "/v1/sandboxes", _Found, query=query)
        for info in found.sandboxes:
            yield info

    async def stop_all(
        self, *, job: str | None = None, labels: Mapping[str, str] | None = None, mine: bool = False
    ) -> types.StopReport:
        """Stop all of the token's principal that match; a filter is required. Others' sandboxes are never touched."""
        if not labels and not mine and job is None:
            raise InvalidArgument("stop_all needs job=, labels= or mine=True")
        body = types.StopFilter(labels=dict(labels) if labels else None, job=job, mine=mine)
        return await self._link().ask_patiently("POST", "/v1/stop", types.StopReport, body=body)

    async def usage(self, by: str, *, since: float | None = None) -> list[types.UsageGroup]:
        """What sandboxes used together, live ones and those of the last day, the most CPU first.

        ``by``: ``label:NAME``, ``job``, ``principal`` or ``image``. ``since``: Unix time; only what lived then or
        later, each whole. Raises InvalidArgument.
        """
        query = {"by": by} | ({} if since is None else {"since": str(since)})
        return (await self._link().ask_patiently("GET", "/v1/usage", _Groups, query=query)).groups

    async def status(self) -> types.Status:
        """The node at a glance."""
        return await self._link().ask_patiently("GET", "/v1/status", types.Status)

    async def version(self) -> types.VersionInfo:
        """The server's version and capabilities."""
        return await self._link().ask_patiently("GET", "/v1/version", types.VersionInfo)

    async def run_container(self, args: SandboxArgs, timeout: float = 120.0) -> Sandbox:
        """The paper's form of ``sandbox``."""
        return await self.sandbox(args, deadline_s=timeout)

    # Jobs

    def job(
        self, name: str, *, lease_s: float = 60, on_lost: Literal["stop", "pause"] = "stop",
        max_live: int | None = None,
    ) -> Job:  # fmt: skip
        """A job, held with ``async with``: its sandboxes end with this process, at the latest ``lease_s`` after it.

        ``on_lost="pause"`` pauses them instead. ``max_live``: most of its sandboxes that live at once. Whoever held
        the same name before is fenced. Raises InvalidArgument.
        """
        if on_lost not in ("stop", "pause"):
            raise InvalidArgument(f'on_lost is "stop" or "pause", not {on_lost!r}')
        return Job(self, name, lease_s=lease_s, on_lost=on_lost, max_live=max_live)

    async def jobs(self) -> list[JobInfo]:
        """Every job of the node, by name."""
        return (await self._link().ask_patiently("GET", "/v1/jobs", _Jobs)).jobs

    async def stop_job(self, name: str) -> types.StopReport:
        """End a job whoever holds it: its holder is fenced, its sandboxes are stopped. Raises NotFound, Denied."""
        return await self._link().ask_patiently("POST", f"/v1/jobs/{quote(name, safe='')}/stop", types.StopReport)

    # What waits

    async def run_microvm(self, args: object, timeout: float = 120.0) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("run_microvm is not in this version")

    async def run_vm(self, args: object, timeout: float = 120.0) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("run_vm is not in this version")

    async def call(self, call: object) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("call (FnCall) is not in this version")

    def call_many(self, calls: object) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("call_many (FnCall) is not in this version")


def _closed_with_loop(link: Link) -> AsyncGenerator[None]:
    """Closes ``link`` when closed itself, as ``asyncio.run`` does with every generator begun in its loop."""

    async def guard() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await link.close()

    generator = guard()
    with suppress(StopIteration):
        generator.__anext__().send(None)
    return generator


def _close_later(pid: int, loop: asyncio.AbstractEventLoop, guard: AsyncGenerator[None]) -> None:
    """Close the connections of a client that nobody holds any more and that nobody closed."""
    if pid != os.getpid():
        _inherited.append(guard)
        return
    with suppress(RuntimeError):  # the loop was closed just now
        loop.call_soon_threadsafe(_close_now, loop, guard)


def _close_now(loop: asyncio.AbstractEventLoop, guard: AsyncGenerator[None]) -> None:
    task = loop.create_task(_closed(guard))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _closed(guard: AsyncGenerator[None]) -> None:
    with suppress(RuntimeError):  # its loop ends at this moment and closes it
        await guard.aclose()


def _restore(
    url: str | None, max_creates: int, job: tuple[str, int] | None = None, trust: str | None = None
) -> DSecClient:
    """An unpickled client: one for all handles of a process that came from the same."""
    with _restoring:
        known = _restored.get((url, max_creates, job, trust))
        if known is None:
            known = DSecClient(url, max_creates_in_flight=max_creates, trust=trust)
            _restored[(url, max_creates, job, trust)] = known
            known._job = job
        return known
