"""``GET /v1/usage``: live sandboxes and tombstones added up."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.types import SandboxState
from dsec.backends.wire import SandboxUse
from dsec.edge.accounts import Sums, by_of
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.record import SandboxRecord
from dsec.edge.router import Route
from dsec.edge.web import answered, json_answer, query_of
from dsec.errors import InvalidArgument, NotFound

__all__ = ["usage_routes"]

_PAGE = 500
_ASKED_AT_ONCE = 32


class _Answers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def usage(self, request: Request) -> Response:
        query = query_of(request, "by", "since")
        if "by" not in query:
            raise InvalidArgument("by is missing", remedy="label:NAME, job, principal or image")
        since = _time(query.get("since", ["0"])[0])
        sums, caller = Sums(by_of(query["by"][0])), calling()
        # The live first: one that ends meanwhile is then found among the ended and not counted again.
        counted = await self._add_live(sums)
        after = 0
        while True:
            after, page = self._core.records.ended_since(since, after, _PAGE)
            for record in page:
                if record.id not in counted and caller.sees(record.project):
                    sums.add(record, record.use or SandboxUse(), record.ended_at or 0.0)
            if len(page) < _PAGE:
                return json_answer({"groups": sums.groups()})
            await asyncio.sleep(0)

    async def _add_live(self, sums: Sums) -> set[str]:
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)
        counted: set[str] = set()

        async def one(record: SandboxRecord) -> None:
            async with turn:
                try:
                    use = await self._core.backend.usage(record.id)
                except NotFound:
                    return  # it ends at this moment
            if record.is_live:
                counted.add(record.id)
                sums.add(record, use, self._core.clock())

        caller = calling()
        known = [each for each in self._core.live.values() if caller.sees(each.project)]
        live = [each for each in known if each.state is not SandboxState.CREATING]
        async with asyncio.TaskGroup() as tasks:
            for record in live:
                tasks.create_task(one(record))
        return counted


def _time(text: str) -> float:
    try:
        at = float(text)
    except ValueError:
        at = -1.0
    if not at >= 0:
        raise InvalidArgument(f"since is Unix time in seconds, not {text[:40]!r}")
    return at


def usage_routes(core: Core) -> list[Route]:
    """All of them."""
    return [Route("GET", "/v1/usage", answered(_Answers(core).usage))]
