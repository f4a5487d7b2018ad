"""A directory tree that nothing written to it can leave.

Every name is resolved component by component with descriptors (``openat`` with O_NOFOLLOW), so neither ``..`` nor a
symlink, whatever its target, leads outside. A path through a symlink is refused, not followed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import OrderedDict

from dsec.errors import ImageCorrupt

__all__ = ["ContainedTree", "Parts", "split_name"]

Parts = tuple[bytes, ...]

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USUAL_MODES: dict[Parts, int] = {(b"tmp",): 0o1777, (b"var", b"tmp"): 0o1777, (b"root",): 0o700}
_MAX_OPEN = 128
_MAX_PATH = 3800
_MAX_DEPTH = 400


def split_name(name: bytes) -> Parts:
    """The components of a name, taken below the root even if it is absolute.

    Raises ImageCorrupt for ``..``, NUL bytes, and names too long or too deep.
    """
    parts = tuple(part for part in name.split(b"/") if part and part != b".")
    if b".." in parts or b"\0" in name:
        raise ImageCorrupt(f"a layer holds a name that leaves its root: {shown(name)}")
    if len(name) > _MAX_PATH or len(parts) > _MAX_DEPTH:
        raise ImageCorrupt(f"a layer holds a name that is too long or too deep: {shown(name[:80])}…")
    return parts


def shown(name: bytes) -> str:
    """A name for a message, whatever bytes it has."""
    return ascii(name.decode(errors="surrogateescape"))


class ContainedTree:
    """Open directories below one root, by path.

    Only one thread may use it, and nobody else may write below the root: that makes keeping descriptors safe.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root_fd = os.open(root, _OPEN_DIRECTORY)
        self._open: OrderedDict[Parts, int] = OrderedDict()
        self.implicit: set[Parts] = set()
        """Directories made only because something lies in them."""

    def __enter__(self) -> ContainedTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        os.close(self.root_fd)

    def forget(self) -> None:
        """Close the directories kept open (needed whenever a directory was removed)."""
        while self._open:
            os.close(self._open.popitem()[1])

    def directory(self, parts: Parts, *, create: bool = True) -> int:
        """Descriptor of a directory, kept by this tree; missing ones are made if ``create``.

        They belong to root and have mode 0755, but /tmp, /var/tmp and /root their usual one: the topmost layer's
        mode is what a sandbox sees.

        Raises ImageCorrupt when a component is no directory.
        """
        if not parts:
            return self.root_fd
        fd = self._open.get(parts)
        if fd is not None:
            self._open.move_to_end(parts)
            return fd
        parent = self.directory(parts[:-1], create=create)
        fd = self._open_child(parent, parts, create)
        self._open[parts] = fd
        # The parent just used is among the newest, so it is never the one to go.
        while len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def _open_child(self, parent: int, parts: Parts, create: bool) -> int:
        try:
            return os.open(parts[-1], _OPEN_DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise ImageCorrupt(f"a layer refers to {shown(b'/'.join(parts))}, which it does not hold") from None
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            where = shown(b"/".join(parts))
            raise ImageCorrupt(f"a layer holds names below {where}, which is no directory") from None
        os.mkdir(parts[-1], dir_fd=parent)
        self.implicit.add(parts)
        fd = os.open(parts[-1], _OPEN_DIRECTORY, dir_fd=parent)
        os.fchmod(fd, _USUAL_MODES.get(parts, 0o755))
        return fd

    def mode_of(self, parts: Parts) -> int | None:
        """The entry's own mode (a symlink is not followed); None if there is none."""
        if not parts:
            return stat.S_IFDIR
        try:
            return os.stat(parts[-1], dir_fd=self.directory(parts[:-1]), follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    def remove(self, parts: Parts) -> None:
        """Remove an entry, a directory with all it holds."""
        parent = self.directory(parts[:-1])
        if stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(os.fsdecode(parts[-1]), dir_fd=parent)
            self.forget()
            self.implicit = {each for each in self.implicit if each[: len(parts)] != parts}
        else:
            os.unlink(parts[-1], dir_fd=parent)
