"""Endpoints as a create asks for them, checked and taken apart. Pure. No error repeats a URL: it may hold secrets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from dsec.api.types import Endpoint, EndpointInfo
from dsec.backends.wire import EndpointCount, EndpointSpec
from dsec.errors import InvalidArgument

__all__ = ["MOST_ENDPOINTS", "endpoint_infos", "endpoint_specs"]

MOST_ENDPOINTS = 16
_MOST_CONNECTIONS = 4096
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_HOST = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]{0,251}[a-zA-Z0-9_])?")
_URL = re.compile(r"[!-~]{1,4096}")
_PATH = re.compile(r"(/(?!/)[!-~]{0,2047})?")
_PORTS = {"http": 80, "https": 443}


def endpoint_specs(asked: Mapping[str, str | Endpoint]) -> list[EndpointSpec]:
    """The endpoints in the order of their addresses; raises InvalidArgument."""
    if len(asked) > MOST_ENDPOINTS:
        raise InvalidArgument(
            f"a sandbox has at most {MOST_ENDPOINTS} endpoints, not {len(asked)}", phase="endpoints"
        )
    return [_spec(name, each if isinstance(each, Endpoint) else Endpoint(each)) for name, each in asked.items()]


def _spec(name: str, asked: Endpoint) -> EndpointSpec:
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"an endpoint cannot be named {name[:40]!r}",
            phase="endpoints",
            remedy="Use up to 32 lower-case letters, digits and hyphens",
        )
    _check_limits(name, asked)
    scheme, host, port, path = _parts(name, asked.url)
    return EndpointSpec(
        name=name,
        tls=scheme == "https",
        host=host,
        port=port,
        path=path,
        max_connections=asked.max_connections,
        max_bytes=asked.max_bytes,
        max_requests_per_minute=asked.max_requests_per_minute,
    )


def _check_limits(name: str, asked: Endpoint) -> None:
    if not 1 <= asked.max_connections <= _MOST_CONNECTIONS:
        raise _wrong(name, f"max_connections must be between 1 and {_MOST_CONNECTIONS}")
    if asked.max_bytes is not None and not 1 <= asked.max_bytes < 2**63:
        raise _wrong(name, "max_bytes must be a positive number")
    if asked.max_requests_per_minute is not None and not 1 <= asked.max_requests_per_minute < 2**31:
        raise _wrong(name, "max_requests_per_minute must be a positive number")


def _parts(name: str, url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path. ``from None`` throughout: Python's own messages repeat the URL."""
    if _URL.fullmatch(url) is None or "\\" in url:
        raise _wrong(name, "not a URL")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _wrong(name, "not a URL") from None
    if parts.scheme not in _PORTS:
        raise _wrong(name, "the URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise _wrong(name, "the URL must not contain a user or password")
    if "?" in url or "#" in url:
        raise _wrong(name, "the URL must have neither query nor fragment")
    if not _is_host(host) or port == 0:
        raise _wrong(name, "the URL's host or port is none")
    path = parts.path.rstrip("/")
    if _PATH.fullmatch(path) is None or {".", ".."} & set(path.split("/")):
        raise _wrong(name, "the URL's path must be plain")
    return parts.scheme, host, port or _PORTS[parts.scheme], path


def _is_host(host: str) -> bool:
    if ":" not in host:
        return _HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return "%" not in host


def _wrong(name: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"endpoint {name}: {what}", phase="endpoints", remedy="For example http://127.0.0.1:8000/v1", endpoint=name
    )


def endpoint_infos(specs: Sequence[EndpointSpec], counts: Sequence[EndpointCount]) -> list[EndpointInfo]:
    """The API's form."""
    known = [*counts, *[EndpointCount()] * (len(specs) - len(counts))]
    return [
        EndpointInfo(
            name=spec.name,
            address=f"http://{spec.name}.dsec.internal",
            url=_url(spec),
            closed=spec.closed,
            max_connections=spec.max_connections,
            max_bytes=spec.max_bytes,
            max_requests_per_minute=spec.max_requests_per_minute,
            requests=count.requests,
            refused=count.refused,
            sent_bytes=count.sent_bytes,
            received_bytes=count.received_bytes,
            connections=count.connections,
        )
        for spec, count in zip(specs, known, strict=False)
    ]


def _url(spec: EndpointSpec) -> str:
    scheme = "https" if spec.tls else "http"
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    port = "" if spec.port == _PORTS[scheme] else f":{spec.port}"
    return f"{scheme}://{host}{port}{spec.path}"
