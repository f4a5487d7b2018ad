"""How far the layers of one import are."""

from __future__ import annotations

from dsec.images.oci import LayoutImage, LayoutLayer
from dsec.images.progress import Progress, Reporter

__all__ = ["Tally"]


class Tally:
    """Counts what is read of all layers of one import."""

    def __init__(self, reference: str, image: LayoutImage, report: Reporter) -> None:
        self._reference = reference
        self._report = report
        self._total = sum(layer.size for layer in image.layers)
        self._layers = len(image.layers)
        self._done: dict[str, int] = {}
        self._complete = 0
        self._say()

    def read(self, blob: str, size: int) -> None:
        """So many bytes of a blob have been read."""
        self._done[blob] = size
        self._say()

    def layer_done(self, layer: LayoutLayer) -> None:
        """A layer is made, or was here."""
        self._done[layer.blob] = layer.size
        self._complete += 1
        self._say()

    def _say(self) -> None:
        done = min(sum(self._done.values()), self._total)
        self._report(Progress(self._reference, "unpack", done, self._total, self._complete, self._layers))
