"""The image that ``dsec up`` builds when the node has none, so that the first program has something to run in."""

from __future__ import annotations

import asyncio
import json

from dsec.cli.progress import ProgressLines
from dsec.node.config import DEFAULT_IMAGE, load_config
from dsec.node.paths import NodePaths

__all__ = ["ensure_first_image"]


def ensure_first_image(paths: NodePaths, url: str, *, quiet: bool) -> None:
    """Build the default image unless an image is there or the settings say ``build_default_image = false``."""
    if load_config(paths.config_json).build_default_image:
        note = json.loads(paths.node_json.read_bytes())
        token = paths.token.read_text().strip()
        asyncio.run(_build_if_none(url, token, note.get("trust"), quiet=quiet))


async def _build_if_none(url: str, token: str, trust: str | None, *, quiet: bool) -> None:
    from dsec.client.client import DSecClient

    async with DSecClient(url, token, trust=trust) as client:
        if await client.images.list():
            return
        with ProgressLines(f"building {DEFAULT_IMAGE}", quiet=quiet) as progress:
            await client.images.build(DEFAULT_IMAGE, on_progress=progress.show)
