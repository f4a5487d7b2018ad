"""Ways into a sandbox: what a client needs to know of an exposed port."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from dsec.api.types import PortInfo

__all__ = ["Url", "url_of"]


class Url(msgspec.Struct, frozen=True, kw_only=True):
    """An exposed port. HTTP/1.1 and WebSocket.

    A browser opens ``link``. A program that cannot resolve ``*.localhost``, or runs on another machine than the API,
    connects to ``connect`` and sends ``host`` as Host. Every request brings the token (``headers``).
    """

    port: int
    """Inside the sandbox."""
    url: str
    """``http://PORT-ID.localhost:API``, an origin of its own."""
    connect: str
    """Host and port of the API, where the connection goes."""
    host: str
    """The Host header, ``PORT-ID.localhost:API``."""
    token: str
    token_header: str

    def __str__(self) -> str:
        return self.url

    @property
    def headers(self) -> dict[str, str]:
        """What a request to ``http://`` + ``connect`` needs."""
        return {"host": self.host, self.token_header: self.token}

    @property
    def link(self) -> str:
        """For a browser: the token in it becomes a cookie, and leaves the address bar."""
        return f"{self.url}/?{self.token_header.replace('-', '_')}={self.token}"


def url_of(info: PortInfo, api_url: str) -> Url:
    """How to reach a port through the API at this URL."""
    parts = urlsplit(api_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    bare = parts.hostname or "127.0.0.1"
    name = f"[{bare}]" if ":" in bare else bare
    origin = info.host if parts.port is None else f"{info.host}:{port}"
    return Url(
        port=info.port,
        url=f"{parts.scheme}://{origin}",
        connect=f"{name}:{port}",
        host=origin,
        token=info.token,
        token_header=info.token_header,
    )
