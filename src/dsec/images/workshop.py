"""What everybody works with who makes layers of a node."""

from __future__ import annotations

from dataclasses import dataclass

from dsec.images.catalogue import Catalogue
from dsec.images.config import ImagesConfig
from dsec.images.erofs import OnRead, make_layer
from dsec.images.holds import Hold, Holds
from dsec.images.store import LayerManifest, LayerStore
from dsec.images.tools import Tools
from dsec.layering.making import Source

__all__ = ["Workshop"]


@dataclass(frozen=True, slots=True)
class Workshop:
    """The node's settings of images, its tools, where layers lie, and who knows and needs them."""

    config: ImagesConfig
    tools: Tools
    store: LayerStore
    catalogue: Catalogue
    holds: Holds

    async def make_layer(
        self, source: Source, hold: Hold, *, on_read: OnRead | None = None
    ) -> tuple[str, LayerManifest]:
        """Make a layer and put it in place, held; its digest and manifest. Errors: see ``erofs.make_layer``."""
        return await make_layer(
            self.tools, self.store, source, hold, timeout_s=self.config.build_timeout_s, on_read=on_read
        )
