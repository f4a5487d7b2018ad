"""A job: sandboxes that end (or pause) with the process that holds it, and go on with the one that takes it over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack
from urllib.parse import quote

from dsec.api import types
from dsec.api.ids import check_job, new_key
from dsec.api.jobs import HeartbeatRequest, JobInfo, JobRequest
from dsec.client.args import SandboxArgs, SandboxFields
from dsec.client.creating import Creating, CreatingMany
from dsec.client.owned import Owned, disown, own_job
from dsec.client.sandbox import Sandbox
from dsec.client.waiting import shielded
from dsec.errors import CallerError, DSecError, Fenced, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Job"]

OnFull = Literal["wait", "raise"]
_STOP_S = 60.0


class Job:
    """Made by ``DSecClient.job``; ``async with`` takes it, and ends it with all its sandboxes.

    While it is held, this process gives a sign of life every third of ``lease_s``. When none comes for ``lease_s``,
    the node stops (``on_lost="pause"``: pauses) the job's sandboxes, whatever else is dead. Whoever takes the same
    name later has its sandboxes and execs from then on, and each call of an older holder raises Fenced: those of its
    sandboxes' handles too, also where they were pickled.
    """

    def __init__(
        self, client: DSecClient, name: str, *, lease_s: float, on_lost: Literal["stop", "pause"],
        max_live: int | None,
    ) -> None:  # fmt: skip
        self.name = check_job(name)
        self._plain = client
        self._request = JobRequest(name=name, holder=new_key(), lease_s=lease_s, on_lost=on_lost, max_live=max_live)
        self._client: DSecClient | None = None
        self._info: JobInfo | None = None
        self._beating: asyncio.Task[None] | None = None
        self._owned: Owned | None = None
        self._lost_by: DSecError | None = None

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    # Holding it

    async def open(self) -> Self:
        """Take it, from its former holder too. Raises Denied for another principal's, InvalidArgument, NodeError."""
        info = await self._plain._link().ask_patiently("POST", "/v1/jobs", JobInfo, body=self._request)
        self._info, self._lost_by = info, None
        self._client = self._plain._in_job(self.name, info.fence)
        self._owned = own_job(self._client._address(), self.name)
        self._beating = asyncio.get_running_loop().create_task(self._beat(self._client, info))
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await shielded(self.stop(), _STOP_S)
            return
        with suppress(Fenced):  # another holds it now, and its sandboxes with it
            await self.stop()

    async def _beat(self, client: DSecClient, info: JobInfo) -> None:
        """Every third of the lease, whatever the node answers but that the job is not ours any more.

        A late one, after a loop that stood still, is worth as much: nobody else has the job, or Fenced says so.
        """
        path, body = f"/v1/jobs/{quote(self.name)}/heartbeat", HeartbeatRequest(fence=info.fence)
        while True:
            await asyncio.sleep(info.lease_s / 3)
            try:
                await client._link().ask_patiently(
                    "POST", path, JobInfo, body=body, patience_s=info.lease_s / 3
                )  # fmt: skip
            except CallerError as error:
                self._lost_by = error
                return
            except DSecError:
                continue

    async def stop(self) -> types.StopReport:
        """End it: its sandboxes are stopped, confirmed, and what it queues leaves. Raises Fenced."""
        client = self._held()
        await self._let_go()
        try:
            return await client._link().ask_patiently(
                "POST", f"/v1/jobs/{quote(self.name)}/stop", types.StopReport, patience_s=_STOP_S
            )
        finally:
            await client.close()

    async def detach(self) -> None:
        """Give no more signs of life, and leave everything as it is: the lease ends it, or another takes it over."""
        client = self._held()
        await self._let_go()
        await client.close()

    async def _let_go(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
        if self._owned is not None:
            disown(self._owned)
            self._owned = None

    def _held(self) -> DSecClient:
        if self._client is None:
            raise InvalidArgument(f"job {self.name} is not held", remedy="Use it inside `async with`, or open() it")
        return self._client

    @property
    def fence(self) -> int:
        """The fencing number of this holder."""
        self._held()
        assert self._info is not None
        return self._info.fence

    @property
    def lost_by(self) -> DSecError | None:
        """Why no more signs of life are given, Fenced mostly; None while they are."""
        return self._lost_by

    async def info(self) -> JobInfo:
        """Its state, lease and limit, and how many of its sandboxes live and wait."""
        path = f"/v1/jobs/{quote(self.name)}"
        return await self._held()._link().ask_patiently("GET", path, JobInfo)

    # Its sandboxes

    def sandbox(
        self, image_or_args: str | SandboxArgs, *, key: str | None = None, deadline_s: float = 120.0,
        on_full: OnFull = "wait", **fields: Unpack[SandboxFields],
    ) -> Creating:  # fmt: skip
        """A new sandbox of the job; see ``DSecClient.sandbox``. Beyond ``max_live`` it waits as on a full node."""
        return self._held().sandbox(image_or_args, key=key, deadline_s=deadline_s, on_full=on_full, **fields)

    def sandboxes(
        self, args: SandboxArgs | Sequence[SandboxArgs], n: int | None = None, *, keys: Sequence[str] | None = None,
        gang: bool = False, deadline_s: float = 120.0, on_full: OnFull = "wait",
    ) -> CreatingMany:  # fmt: skip
        """Many sandboxes of the job; see ``DSecClient.sandboxes``."""
        return self._held().sandboxes(args, n, keys=keys, gang=gang, deadline_s=deadline_s, on_full=on_full)

    def attach(self, sandbox_id: str) -> Sandbox:
        """A sandbox by ID, used in the job's name."""
        return self._held().attach(sandbox_id)

    async def get(self, name: str) -> Sandbox:
        """A sandbox by name (or ID), used in the job's name. Raises NotFound."""
        return await self._held().get(name)

    async def find(
        self, labels: Mapping[str, str] | None = None, state: types.SandboxState | str | None = None
    ) -> AsyncIterator[types.SandboxInfo]:
        """The job's sandboxes, former holders' too; see ``DSecClient.find``."""
        async for info in self._held().find(job=self.name, labels=labels, state=state):
            yield info

    async def stop_all(self, *, labels: Mapping[str, str] | None = None) -> types.StopReport:
        """Stop the job's sandboxes (those with all of the labels), and go on holding it."""
        return await self._held().stop_all(job=self.name, labels=labels)
