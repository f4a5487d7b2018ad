"""Copies of images to a layout on this node, by skopeo; from registries with patience.

A copy that broke off is begun again in the same layout: blobs that came whole are not fetched twice. What is tried
again, how often and when, says ``dsec.images.patience``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine
from pathlib import Path

import aiohttp
import structlog
from aiohttp.helpers import get_env_proxy_for_url
from yarl import URL

from dsec.errors import DeadlineExceeded, DSecError, ImageCorrupt, RegistryRateLimited, RegistryUnreachable
from dsec.images import skopeo
from dsec.images.config import ImagesConfig
from dsec.images.patience import delay_s, retry_after_s
from dsec.images.progress import Progress, Reporter
from dsec.images.threads import in_thread
from dsec.images.tools import ToolResult, Tools

__all__ = ["Copier"]

_log = structlog.get_logger("dsec.images.copying")
_REGISTRY = "docker://"
_POLL_S = 0.25
_ASKING_S = 5.0
_LEAVE_ALONE = (429, 503)


class Copier:
    """Runs the copies of one node."""

    def __init__(self, config: ImagesConfig, tools: Tools) -> None:
        self._config = config
        self._tools = tools

    async def copy(
        self, source: str, layout: Path, scratch: Path, reference: str, report: Reporter, tool_id: str | None
    ) -> None:
        """Bring ``docker://…`` or ``docker-archive:…`` into the layout. Errors: see ``Images.resolve``.

        A registry that answers 429, or 503 with ``Retry-After``, is left alone for as long as it says; a download
        that broke off, or another 5xx, is tried again soon: for ``registry_patience_s`` of waiting in all, and never
        longer than those who wait have time. Then the error is told.
        """
        loop = asyncio.get_running_loop()
        patience_s = self._config.registry_patience_s if source.startswith(_REGISTRY) else 0.0
        failed = 0
        while True:
            try:
                return await self._once(source, layout, scratch, reference, report, tool_id)
            except (RegistryRateLimited, RegistryUnreachable) as error:
                failed += 1
                found = await self._as_told(error, source)
                wait_s = delay_s(found, failed=failed, left_s=min(patience_s, report.until - loop.time()))
                if wait_s is None:
                    raise found from None
                patience_s -= wait_s
                _log.info("a pull is tried again", image=reference, after_s=wait_s, failed=failed, error=str(found))
                report(Progress(reference, "wait", await in_thread(lambda _: _allocated(scratch))))
                await asyncio.sleep(wait_s)

    async def _as_told(self, error: DSecError, source: str) -> DSecError:
        """With how long the registry wants to be left alone, where skopeo cannot have said it."""
        url = skopeo.asked_again(error, source, self._config.insecure_registries)
        told = await _asked_delay_s(url) if url is not None else None
        if told is None:
            return error
        return RegistryRateLimited(
            f"{error.message} (the registry asks to be left alone for {told:.0f} s)",
            phase="image",
            remedy=skopeo.RATE_LIMIT_REMEDY,
            retry_after_s=told,
        )

    async def _once(
        self, source: str, layout: Path, scratch: Path, reference: str, report: Reporter, tool_id: str | None
    ) -> None:
        has_policy = await in_thread(lambda _: skopeo.POLICY.exists())
        argv = skopeo.copy_argv(source, layout, scratch, self._config, has_policy=has_policy)
        timeout_s = self._config.pull_timeout_s
        run = self._tools.run("pull", argv, timeout_s=timeout_s, log=_refuse_429, tool_id=tool_id)
        result = await self._unless_stalled(run, scratch, reference, report)
        if result.exit_code:
            raise skopeo.error_from_text(result.stderr, reference, registry=source.startswith(_REGISTRY))

    async def _unless_stalled(
        self, run: Coroutine[None, None, ToolResult], scratch: Path, reference: str, report: Reporter
    ) -> ToolResult:
        """Wait for a copy; end it when it brings nothing for ``stall_timeout_s``, or more than an image may have."""
        copying = asyncio.ensure_future(run)
        stall_s = self._config.stall_timeout_s
        loop = asyncio.get_running_loop()
        seen, patience_ends = 0, loop.time() + stall_s
        try:
            while not copying.done():
                await asyncio.wait([copying], timeout=_POLL_S)
                size = await in_thread(lambda _: _allocated(scratch))
                if size > self._config.max_image_bytes:
                    raise ImageCorrupt(f"{reference} is larger than the node allows", remedy="Raise max_image_bytes")
                if size > seen:
                    seen, patience_ends = size, loop.time() + stall_s
                    report(Progress(reference, "download", size))
                elif loop.time() > patience_ends and not copying.done():
                    raise _stalled(reference, stall_s)
            return copying.result()
        except TimeoutError as error:
            raise DeadlineExceeded(f"{reference}: {error}", phase="image", remedy="Raise pull_timeout_s") from None
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)


async def _asked_delay_s(url: str) -> float | None:
    """How long the registry asks to be left alone, if that is what it answers there; None where it does not."""
    timeout = aiohttp.ClientTimeout(total=_ASKING_S)
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        # Certificates are skopeo's business: of this answer only the number is taken, and nothing is sent; so of what
        # `trust_env` would take from root's files and environment, the proxy alone.
        proxy, proxy_auth = _proxy_for(url)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.head(url, ssl=False, allow_redirects=False, proxy=proxy, proxy_auth=proxy_auth) as answer,
        ):
            if answer.status in _LEAVE_ALONE:
                return retry_after_s(answer.headers, time.time())
    return None


def _proxy_for(url: str) -> tuple[URL | None, aiohttp.BasicAuth | None]:
    try:
        return get_env_proxy_for_url(URL(url))
    except LookupError:
        return None, None


def _stalled(reference: str, stall_s: float) -> RegistryUnreachable:
    return RegistryUnreachable(
        f"{reference}: the registry delivered nothing for {stall_s:g} s",
        phase="image",
        remedy="Try again later, or configure a mirror",
    )


def _refuse_429(line: str) -> None:
    delay = skopeo.rate_limit_delay_s(line)
    if delay is not None:
        # skopeo itself would wait and ask again for minutes, with nobody knowing why.
        raise RegistryRateLimited(
            "the registry answered 429: too many requests",
            phase="image",
            retry_after_s=delay,
            remedy=skopeo.RATE_LIMIT_REMEDY,
        )


def _allocated(directory: Path) -> int:
    """Bytes of disk below a directory; the stand-ins for known blobs are holes and count nothing."""
    total = 0
    for base, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(base, name)).st_blocks * 512  # noqa: PTH118
    return total
