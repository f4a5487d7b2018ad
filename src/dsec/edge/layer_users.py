"""Which sandboxes, kept disks and snapshots need which layers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["LayerUsers"]


class LayerUsers:
    """Users by layer, counted: whether one is needed is asked for every layer of a node that is full."""

    def __init__(self) -> None:
        self._of: dict[str, Sequence[str]] = {}
        self._counts: Counter[str] = Counter()

    def hold(self, user: str, layers: Iterable[str]) -> None:
        """A user needs these layers, and no longer those that it needed before."""
        self.drop(user)
        self._of[user] = own = tuple(dict.fromkeys(layers))
        self._counts.update(own)

    def drop(self, user: str) -> Sequence[str]:
        """A user needs nothing any more; what it needed until now."""
        own = self._of.pop(user, ())
        for each in own:
            self._counts[each] -= 1
            if not self._counts[each]:
                del self._counts[each]
        return own

    def __contains__(self, digest: str) -> bool:
        return digest in self._counts

    def of(self, digest: str) -> list[str]:
        """The users of a layer, sorted."""
        return sorted(user for user, layers in self._of.items() if digest in layers)
