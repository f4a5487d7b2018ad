"""What the shell's completion offers for sandboxes and images; nothing when the node does not answer soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dsec.errors import DSecError

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["image_names", "sandbox_names", "snapshot_ids"]

_PATIENCE_S = 1.0


def sandbox_names(incomplete: str) -> list[str]:
    """Live sandboxes, by name where they have one; once an ID is begun, the IDs of all, the stopped too."""
    return _offered(_ids if incomplete.startswith("sb-") else _live, incomplete)


def image_names(incomplete: str) -> list[str]:
    """Images of the node, Docker Hub's also by their short names."""
    return _offered(_images, incomplete)


def snapshot_ids(incomplete: str) -> list[str]:
    """Snapshots that the node keeps."""
    return _offered(_snapshots, incomplete)


def _offered(ask: Callable[[DSecClient], Awaitable[list[str]]], incomplete: str) -> list[str]:
    from dsec.client.client import DSecClient

    async def found() -> list[str]:
        async with asyncio.timeout(_PATIENCE_S), DSecClient() as client:
            return await ask(client)

    try:
        return sorted({name for name in asyncio.run(found()) if name.startswith(incomplete)})
    except (DSecError, TimeoutError):
        return []


async def _live(client: DSecClient) -> list[str]:
    return [one.name or one.id async for one in client.find()]


async def _ids(client: DSecClient) -> list[str]:
    return [one.id async for one in client.find(state="creating,running,paused,stopped,lost")]


async def _snapshots(client: DSecClient) -> list[str]:
    return [one.id for one in await client.snapshots.list()]


async def _images(client: DSecClient) -> list[str]:
    names = [one.reference for one in await client.images.list()]
    return names + [name.removeprefix("docker.io/").removeprefix("library/") for name in names]
