"""The promises about creates: retried by key within the deadline, withdrawn when cancelled, one or many."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from dsec.api import types
from dsec.api.ids import check_key, new_key
from dsec.client.args import SandboxArgs
from dsec.client.link import Link
from dsec.client.owned import disown, own_create, own_sandbox
from dsec.client.results import Created
from dsec.client.retry import delay_before, may_retry
from dsec.client.sandbox import Sandbox
from dsec.client.waiting import shielded
from dsec.errors import DeadlineExceeded, DSecError, InvalidArgument, NotFound, PlatformError, SandboxGone

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Creating", "CreatingMany", "Keeper"]

OnFull = Literal["wait", "raise"]
_ANSWER_S = 2.0
"""How much later than the deadline the server's own answer, which knows the phase, may come."""
_WITHDRAW_S = 2.0
_STOP_S = 30.0
_REFUSED_ATTEMPTS = 6
"""A refused connection means that nobody holds the listening socket: the node is down, not restarting."""


class Creating:
    """``await`` it for the Sandbox, or enter it with ``async with``, which stops the sandbox at its end."""

    def __init__(
        self, client: DSecClient, args: SandboxArgs, *, key: str | None, deadline_s: float, on_full: OnFull
    ) -> None:
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise InvalidArgument(f"deadline_s must be a positive number of seconds, not {deadline_s}")
        if on_full not in ("wait", "raise"):
            raise InvalidArgument(f'on_full is "wait" or "raise", not {on_full!r}')
        self._client = client
        self._args = args
        self._own_key = key is None
        self.key = new_key() if key is None else check_key(key)
        self._deadline_s = deadline_s
        self._on_full: OnFull = on_full
        self._keeper: Keeper | None = None

    def __await__(self) -> Generator[Any, None, Sandbox]:
        return self._create().__await__()

    async def __aenter__(self) -> Sandbox:
        sandbox = await self._create()
        self._keeper = Keeper(sandbox)
        return sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            await self._keeper.stop(failing=kind is not None)

    # The create

    async def _create(self) -> Sandbox:
        link = self._client._link()
        end = asyncio.get_running_loop().time() + self._deadline_s
        try:
            async with asyncio.timeout_at(end):
                await link.creates.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no create could be sent for {self._deadline_s} s", phase="client",
                remedy="Raise max_creates_in_flight or deadline_s",
            ) from None  # fmt: skip
        owned = own_create(link.address, self.key)
        try:
            info = await self._until(link, end)
        except asyncio.CancelledError:
            await shielded(self._withdraw(link), _WITHDRAW_S)
            raise
        finally:
            disown(owned)
            link.creates.release()
        return Sandbox(self._client, info.id, info)

    async def _until(self, link: Link, end: float) -> types.SandboxInfo:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            left = end - loop.time()
            try:
                return await self._ask(link, max(left, 0.001))
            except DSecError as error:
                attempt += 1
                wait = delay_before(attempt, error, end - loop.time())
                refused = error.details.get("refused") and attempt > _REFUSED_ATTEMPTS
                if wait is None or refused or not may_retry(error, on_full=self._on_full):
                    raise
            await asyncio.sleep(wait)

    async def _ask(self, link: Link, left_s: float) -> types.SandboxInfo:
        job = self._client._job
        body = self._args.request(
            key=self.key, deadline_s=left_s, on_full=self._on_full, job=job[0] if job is not None else None
        )
        try:
            async with asyncio.timeout(left_s + _ANSWER_S):
                return await link.ask("POST", "/v1/sandboxes", types.SandboxInfo, body=body)
        except DSecError:
            raise
        except TimeoutError:
            if self._own_key:
                await shielded(self._withdraw(link), _WITHDRAW_S)
            raise DeadlineExceeded(
                f"the sandbox was not there after {self._deadline_s} s", phase="create",
                remedy="The same key joins what is still under way; or raise deadline_s",
            ) from None  # fmt: skip

    async def _withdraw(self, link: Link) -> None:
        await link.ask_patiently(
            "DELETE", f"/v1/creates/{quote(self.key, safe='')}", dict[str, Any], patience_s=_WITHDRAW_S
        )


class Keeper:
    """Answers for a sandbox inside its ``with``: it is stopped at the end, or at the latest when the process ends."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._owned = own_sandbox(sandbox._client._address(), sandbox.id)

    async def stop(self, *, failing: bool) -> None:
        """Stop it. While another error is on its way (``failing``), one of the stop's own does not take its place."""
        try:
            if failing:
                await shielded(self._sandbox.stop(), _STOP_S)
            else:
                await _stop_quietly(self._sandbox)
        finally:
            disown(self._owned)

    def leave(self) -> None:
        """Let it live on: nobody here answers for it any more."""
        disown(self._owned)


async def _stop_quietly(sandbox: Sandbox) -> None:
    """Stop at the end of ``async with``; one that is gone already is what was wanted."""
    stopping = asyncio.get_running_loop().create_task(sandbox.stop())
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await asyncio.wait({stopping}, timeout=_STOP_S)
        stopping.cancel()
        raise
    except (NotFound, SandboxGone):
        return


class CreatingMany:
    """Iterate it for each Created as it becomes ready, or await ``all()`` for a list in the order asked.

    An error of one is in its Created and does not disturb the others. Leaving the iteration withdraws what was not
    taken.
    """

    def __init__(self, creates: Sequence[Creating]) -> None:
        self._creates = creates

    def __aiter__(self) -> AsyncGenerator[Created[Sandbox]]:
        return self._ready()

    async def all(self) -> list[Created[Sandbox]]:
        """Every Created, in the order asked."""
        return sorted([made async for made in self._ready()], key=lambda made: made.index)

    async def _ready(self) -> AsyncGenerator[Created[Sandbox]]:
        queue: asyncio.Queue[Created[Sandbox]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(_one(index, create, queue)) for index, create in enumerate(self._creates)]
        try:
            for _ in tasks:
                yield await queue.get()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await shielded(_withdrawn(tasks, queue), _STOP_S)


async def _one(index: int, create: Creating, queue: asyncio.Queue[Created[Sandbox]]) -> None:
    try:
        sandbox = await create
    except DSecError as error:
        queue.put_nowait(Created(index, create.key, None, error))
    except Exception as error:
        failure = PlatformError(f"{type(error).__name__}: {error}", phase="client")
        queue.put_nowait(Created(index, create.key, None, failure))
    else:
        queue.put_nowait(Created(index, create.key, sandbox, None))


async def _withdrawn(tasks: list[asyncio.Task[None]], queue: asyncio.Queue[Created[Sandbox]]) -> None:
    """Wait until the cancelled ones are withdrawn, and stop those that were ready and that nobody took."""
    await asyncio.wait(tasks)
    while not queue.empty():
        sandbox = queue.get_nowait().sandbox
        if sandbox is not None:
            await _stop_quietly(sandbox)
