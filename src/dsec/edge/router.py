"""Which answer belongs to which request: a table of routes, and the ASGI application over it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Answer", "Route", "application"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = Callable[[Request], Awaitable[Response]]


class Route:
    """One method of one path. ``{name}`` stands for a part of the path, ``{name:path}`` for all that is left."""

    def __init__(self, method: str, path: str, answer: Answer) -> None:
        self.method = method
        self.path = path
        self.answer = answer

    @property
    def pattern(self) -> str:
        """A regular expression with the names as groups."""
        parts = re.split(r"\{([a-z_]+)(:path)?\}", self.path)
        literals, names, rests = parts[::3], parts[1::3], parts[2::3]
        return re.escape(literals[0]) + "".join(
            f"(?P<{name}>{'.+' if rest else '[^/]+'})" + re.escape(literal)
            for name, rest, literal in zip(names, rests, literals[1:], strict=True)
        )


def application(routes: Sequence[Route], otherwise: Answer) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Answers by the first route that fits; what fits none, by ``otherwise``. Routes answer their own errors."""
    by_path: dict[str, dict[str, Answer]] = {}
    for route in routes:
        by_path.setdefault(route.pattern, {})[route.method] = route.answer
    fixed = {route.path: by_path[route.pattern] for route in routes if "{" not in route.path}
    others = [
        (re.compile(pattern, re.DOTALL).fullmatch, methods)
        for pattern, methods in by_path.items()
        if "(?P" in pattern
    ]

    def find(method: str, path: str) -> tuple[Answer, dict[str, str]]:
        methods = fixed.get(path)
        if methods is not None and method in methods:
            return methods[method], {}
        for fits, methods in others:
            found = fits(path)
            if found is not None and method in methods:
                return methods[method], found.groupdict()
        return otherwise, {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # As it was sent, as the apiserver reads it too: decoded first, one route could be asked for as another.
        answer, names = find(scope["method"], scope["raw_path"].decode("latin-1"))
        scope["path_params"] = {name: unquote(value) for name, value in names.items()}
        response = await answer(Request(scope, receive, send))
        await response(scope, receive, send)

    return app
