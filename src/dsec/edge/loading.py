"""How layers are read on demand: what the node's layer holder has counted."""

from __future__ import annotations

import msgspec

from dsec.backends.contract import Backend
from dsec.backends.wire import Loading, answer

__all__ = ["LayerLoads"]


class LayerLoads:
    """Asks the node's layer holder, by way of its runtime. Nothing is kept: each call asks anew."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def report(self) -> Loading:
        """Counters of the node, and every layer that is open and not complete; ``on_demand`` False where layers are
        only pulled whole. The fetcher's numbers are up to a second old.

        Raises NodeError, phase ``holder``, when the holder does not answer within two seconds.
        """
        report = await self._page(0)
        layers = list(report.layers)
        more = report.more
        while more and layers:
            page = await self._page(layers[-1].layer)
            layers += page.layers
            more = page.more and bool(page.layers)
        return msgspec.structs.replace(report, layers=layers, more=False)

    async def _page(self, after: int) -> Loading:
        return answer(await self._backend.call("layer.loading", {"after": after}), Loading)
