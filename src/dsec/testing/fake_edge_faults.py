"""Faults that a test tells the fake edge: requests that fail, and requests that are held."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from dsec.errors import DSecError, NotFound

__all__ = ["Faults"]


class Faults:
    """Of requests, by ``METHOD path``; a WebSocket's opens are ``WS method``."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        """Held requests whose client went away."""
        self._someone_gone = asyncio.Event()
        self._failures: dict[str, list[DSecError]] = {}
        self._holds: dict[str, asyncio.Event] = {}
        self._held: dict[str, asyncio.Event] = {}

    def fail_next(self, route: str, *errors: DSecError) -> None:
        """The next requests whose ``METHOD path`` is ``route`` (or begins so, before a ``*``) get these errors."""
        self._failures.setdefault(route, []).extend(errors)

    def hold(self, route: str) -> None:
        """Requests whose ``METHOD path`` is ``route`` (or begins so, before a ``*``) wait until ``release``."""
        self._holds[route] = asyncio.Event()
        self._held[route] = asyncio.Event()

    def release(self, route: str) -> None:
        """Let held requests go on; later ones are not held."""
        self._holds.pop(route).set()

    async def until_held(self, route: str) -> None:
        """Wait until a request is being held."""
        await self._held[route].wait()

    async def until_gone(self) -> None:
        """Wait until a held request's client has gone."""
        await self._someone_gone.wait()

    def fail(self, label: str) -> None:
        """Raise the error that a test told for a request, if any."""
        for route, errors in self._failures.items():
            if _fits(route, label) and errors:
                raise errors.pop(0)

    async def meet(self, request: web.Request) -> None:
        """Fail a request or hold it, as told."""
        label = f"{request.method} {request.path}"
        self.fail(label)
        for route, event in list(self._holds.items()):
            if _fits(route, label):
                self._held[route].set()
                await self._released(request, label, event)

    async def meet_open(self, label: str) -> None:
        """The same for an open of a WebSocket, which goes with its connection."""
        for route, event in list(self._holds.items()):
            if _fits(route, label):
                self._held[route].set()
                await event.wait()

    async def _released(self, request: web.Request, label: str, event: asyncio.Event) -> None:
        """Wait for the release; a client that goes meanwhile is noted, as a queue would."""
        while not event.is_set():
            if request.transport is None or request.transport.is_closing():
                self.gone.append(label)
                self._someone_gone.set()
                raise NotFound("the client has gone")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await event.wait()


def _fits(route: str, label: str) -> bool:
    return label.startswith(route[:-1]) if route.endswith("*") else label == route
