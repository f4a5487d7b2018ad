"""A store in memory: for tests of what stands above stores, and for no other use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from dsec.stores.contract import Entry, checked_name, missing

__all__ = ["MemoryStore"]


def _never(_: str, __: str) -> None:
    return None


class MemoryStore:
    """A Store whose objects are a dictionary. ``before(act, name)`` runs ahead of each act and may raise."""

    title = "memory:"

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Callable[[str, str], None] = _never
        self._clock = clock
        self._lock = threading.RLock()
        self._modified: dict[str, float] = {}
        self._versions: dict[str, int] = {}

    def stat(self, name: str) -> Entry | None:
        """See ``Store``."""
        self.before("stat", checked_name(name))
        with self._lock:
            return self._entry(name) if name in self.objects else None

    def _entry(self, name: str) -> Entry:
        return Entry(name, len(self.objects[name]), self._modified[name], str(self._versions[name]))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Store``."""
        self.before("read", checked_name(name))
        with self._lock:
            content = self.objects.get(name)
        if content is None:
            raise missing(self.title, name)
        return content[offset : None if length is None else offset + length]

    def put(self, name: str, content: bytes) -> None:
        """See ``Store``."""
        self.before("put", checked_name(name))
        with self._lock:
            self.objects[name] = content
            self._modified[name] = self._clock()
            self._versions[name] = self._versions.get(name, 0) + 1

    def swap(self, name: str, content: bytes, mark: str | None) -> bool:
        """See ``Store``."""
        self.before("swap", checked_name(name))
        with self._lock:
            now = str(self._versions[name]) if name in self.objects else None
            if now != mark:
                return False
            self.put(name, content)
            return True

    def remove(self, name: str, mark: str) -> bool:
        """See ``Store``."""
        self.before("remove", checked_name(name))
        with self._lock:
            if name not in self.objects or str(self._versions[name]) != mark:
                return False
            del self.objects[name]
            return True

    def list(self, folder: str) -> Iterator[Entry]:
        """See ``Store``."""
        self.before("list", checked_name(folder))
        with self._lock:
            return iter([self._entry(name) for name in self.objects if name.startswith(folder + "/")])

    def delete(self, name: str) -> None:
        """See ``Store``."""
        self.before("delete", checked_name(name))
        with self._lock:
            self.objects.pop(name, None)

    def sweep(self, older_than_s: float) -> int:
        """Nothing is ever without a name."""
        self.before("sweep", "tmp")
        return 0
