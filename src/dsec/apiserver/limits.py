"""What holds before a token is seen: how long a head may be, how long it may take, how many may wait for theirs."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dsec.apiserver.ports import MAX_HEAD, SortedHttp
from dsec.apiserver.splice import UPGRADES

__all__ = ["AUTHENTICATED", "LimitedHttp", "Limits"]

AUTHENTICATED = "dsec.authenticated"
"""Where a request's scope has the function that says of its connection that a token was good."""


class Limits:
    """The limits of one server, and whom its strangers are: connections on which no token was good yet."""

    def __init__(
        self, *, head_s: float = 15.0, body_s: float = 120.0, linger_s: float = 5.0, most_strangers: int = 4096
    ) -> None:
        self.head_s = head_s
        """From a request's first byte (of a connection's first one, from its beginning) to the end of its head."""
        self.body_s = body_s
        """Between two pieces of a body, while somebody wants them."""
        self.linger_s = linger_s
        """For the rest of a body whose request has been answered."""
        self.most_strangers = most_strangers
        """More than can come between two looks at what they say: a rush of honest clients is not cut."""
        self._strangers: dict[LimitedHttp, None] = {}

    def __len__(self) -> int:
        return len(self._strangers)

    def came(self, connection: LimitedHttp) -> None:
        """A connection has come. The oldest stranger goes when there are too many."""
        self._strangers[connection] = None
        if len(self._strangers) > self.most_strangers:
            oldest = next(iter(self._strangers))
            self.known(oldest)
            oldest.transport.close()

    def known(self, connection: LimitedHttp) -> None:
        """It is no stranger any more, or gone."""
        self._strangers.pop(connection, None)


class LimitedHttp(SortedHttp):
    """The server's protocol with limits: uvicorn's by itself takes heads of any length, and waits for ever."""

    limits: Limits
    """Set in a subclass for each server."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head = 0
        self._waits: asyncio.TimerHandle | None = None
        self._body_at = 0.0
        self._body_open = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Part of asyncio.Protocol."""
        super().connection_made(transport)
        self.limits.came(self)
        self._wait(self.limits.head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._wait_no_more()
        self.limits.known(self)
        super().connection_lost(exc)

    def _wait(self, seconds: float, then: Any) -> None:
        self._wait_no_more()
        self._waits = self.loop.call_later(seconds, then)

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    # Whom the connection goes to

    def _hand_over(self, sandbox: str, data: bytes) -> None:
        self._wait_no_more()
        self.limits.known(self)
        super()._hand_over(sandbox, data)

    def handle_websocket_upgrade(self) -> None:
        """Part of uvicorn's protocol: whoever gets it decides about its token at once."""
        self._wait_no_more()
        self.limits.known(self)
        super().handle_websocket_upgrade()

    def _should_upgrade(self) -> bool:
        return self._get_upgrade() in UPGRADES and self._should_upgrade_to_ws()

    # Heads

    def on_message_begin(self) -> None:
        """Part of the parser's protocol."""
        self._head = 0
        if self._waits is None:
            self._wait(self.limits.head_s, self._too_slow)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of the parser's protocol."""
        self._longer(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Part of the parser's protocol."""
        self._longer(len(name) + len(value))
        super().on_header(name, value)

    def _longer(self, more: int) -> None:
        self._head += more
        if self._head > MAX_HEAD:
            raise ValueError(f"the request's line and headers are longer than {MAX_HEAD} bytes")

    # Bodies

    def on_headers_complete(self) -> None:
        """Part of the parser's protocol."""
        cast("dict[str, Any]", self.scope)[AUTHENTICATED] = self._authenticated
        self._body_open = True
        self._body_at = self.loop.time()
        self._wait(self.limits.body_s, self._look_at_body)
        super().on_headers_complete()

    def _authenticated(self) -> None:
        self.limits.known(self)

    def on_body(self, body: bytes) -> None:
        """Part of the parser's protocol."""
        self._body_at = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Part of the parser's protocol."""
        self._body_open = False
        self._wait_no_more()
        super().on_message_complete()

    def _look_at_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:  # it is the edge that does not take it
            self._body_at = now
        left = self._body_at + self.limits.body_s - now
        if left > 0:
            self._wait(left, self._look_at_body)
        elif self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            self._too_slow()

    def on_response_complete(self) -> None:
        """Part of uvicorn's protocol."""
        if self._body_open and self.cycle.response_complete and not self.transport.is_closing():
            # Nobody wants the rest of the body; without it there is no next request.
            self._wait(self.limits.linger_s, self.transport.close)
        super().on_response_complete()
