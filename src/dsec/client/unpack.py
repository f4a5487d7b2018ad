"""An archive from a sandbox as a file or tree of this machine: nothing leads out of it, whatever the archive says."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from typing import NoReturn

from dsec.client.tar_in import Member, TarReader
from dsec.client.tar_out import Counts
from dsec.errors import DSecError, FileExists, FileIsDirectory, ProtocolError, file_error

__all__ = ["Unpacking"]

_SET_IDS = 0o6000
_FILLING = 0o700


class Unpacking:
    """Writes one archive to ``target``. Files are written under hidden names and renamed; ``owners``: chowned.

    Without ``set_ids`` set-ID bits are dropped. Links that lead out of the target are left out unless ``all_links``.
    """

    def __init__(self, target: str, counts: Counts, *, owners: bool, set_ids: bool, all_links: bool) -> None:
        self._target = target.rstrip("/") or "/"
        self._counts = counts
        self._owners = owners
        self._kept = 0o7777 if set_ids else 0o7777 & ~_SET_IDS
        self._all_links = all_links
        self._checked: set[str] = set()
        self._filling: list[tuple[str, Member]] = []

    def run(self, more: Callable[[], bytes | memoryview]) -> None:
        """Read it all. Raises ProtocolError for what is no archive, FileError for what cannot be written."""
        reader = TarReader(more)
        for member in reader.members():
            parts = _relative(member.name)
            path = "/".join([self._target, *parts]) if parts else self._target
            self._leave(path)
            try:
                if parts:
                    self._parents(parts[:-1])
                self._put(member, path, reader, top=not parts)
            except DSecError:
                raise
            except OSError as error:
                raise file_error(error.errno or errno.EIO, path) from None
        self._leave("")

    def _leave(self, path: str) -> None:
        """Give directories their mode and time once they are filled."""
        while self._filling and not path.startswith(self._filling[-1][0] + "/"):
            directory, member = self._filling.pop()
            os.chmod(directory, member.mode & self._kept)  # noqa: PTH101
            _set_time(directory, member)

    def _parents(self, parts: list[str]) -> None:
        path = self._target
        for part in ("", *parts):
            path = f"{path}/{part}" if part else path
            if path in self._checked:
                continue
            try:
                found = os.stat(path) if path == self._target else os.lstat(path)  # noqa: PTH116
            except FileNotFoundError:
                os.mkdir(path)  # noqa: PTH102
            else:
                if not stat.S_ISDIR(found.st_mode):
                    _refuse(path, "a link or a file is where the archive has a directory")
            self._checked.add(path)

    def _put(self, member: Member, path: str, reader: TarReader, *, top: bool) -> None:
        if member.kind == "directory":
            self._directory(member, path, top=top)
        elif member.kind == "file":
            self._file(member, path, reader)
        elif member.kind == "hardlink":
            self._hard_link(member, path)
        elif self._all_links or top or self._inside(path, member.link):
            self._placed(path, lambda hidden: os.symlink(member.link, os.fsencode(hidden)))  # noqa: PTH211
            if self._owners:
                os.chown(path, member.uid, member.gid, follow_symlinks=False)
            if os.utime in os.supports_follow_symlinks:
                _set_time(path, member, follow_symlinks=False)
        else:
            self._counts.skip(path)
        self._counts.entries += 1

    def _directory(self, member: Member, path: str, *, top: bool) -> None:
        try:
            os.mkdir(path, _FILLING)  # noqa: PTH102
        except FileExistsError:
            found = os.stat(path) if top else os.lstat(path)  # noqa: PTH116
            if not stat.S_ISDIR(found.st_mode):
                _refuse(path, "a link or a file is where the archive has a directory")
        else:
            if self._owners:
                os.chown(path, member.uid, member.gid)
            self._filling.append((path, member))
        self._checked.add(path)

    def _file(self, member: Member, path: str, reader: TarReader) -> None:
        hidden = _hidden(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = os.open(hidden, flags, 0o600)
        try:
            try:
                for offset, length in member.parts:
                    os.lseek(file, offset, os.SEEK_SET)
                    for view in reader.data(length):
                        while view:
                            view = view[os.write(file, view) :]
                if member.parts != ((0, member.size),):
                    os.ftruncate(file, member.size)
                if self._owners:
                    os.fchown(file, member.uid, member.gid)
                os.fchmod(file, member.mode & self._kept)
            finally:
                os.close(file)
            _set_time(hidden, member)
            if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                raise FileIsDirectory(f"{path} is a directory", errno=errno.EISDIR, path=path)
            os.replace(hidden, path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(hidden)  # noqa: PTH108
            raise
        self._counts.bytes += member.size

    def _hard_link(self, member: Member, path: str) -> None:
        first = _relative(member.link)
        if not first:
            raise ProtocolError("a hard link of the archive leads nowhere")
        self._parents(first[:-1])
        source = "/".join([self._target, *first])
        if not stat.S_ISREG(os.lstat(source).st_mode):
            _refuse(source, "a hard link of the archive leads to no file")
        self._placed(path, lambda hidden: os.link(source, hidden, follow_symlinks=False))

    def _placed(self, path: str, make: Callable[[str], None]) -> None:
        hidden = _hidden(path)
        make(hidden)
        try:
            if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                raise FileIsDirectory(f"{path} is a directory", errno=errno.EISDIR, path=path)
            os.replace(hidden, path)  # noqa: PTH105
        finally:
            with contextlib.suppress(OSError):
                os.unlink(hidden)  # noqa: PTH108

    def _inside(self, path: str, link: bytes) -> bool:
        """Whether a link stays below the target: dots only first, where they mean directories that were checked."""
        parts = [part for part in link.split(b"/") if part not in (b"", b".")]
        up = 0
        while up < len(parts) and parts[up] == b"..":
            up += 1
        depth = path.removeprefix(self._target).count("/") - 1
        return not link.startswith(b"/") and up <= depth and b".." not in parts[up:]


def _relative(name: bytes) -> list[str]:
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ProtocolError(f"a member of the archive leads out of it: {os.fsdecode(name)!r}")
    return [os.fsdecode(part) for part in parts]


def _hidden(path: str) -> str:
    directory, _, _ = path.rpartition("/")
    return f"{directory}/.dsec-{secrets.token_hex(8)}" if "/" in path else f".dsec-{secrets.token_hex(8)}"


def _set_time(path: str, member: Member, *, follow_symlinks: bool = True) -> None:
    with contextlib.suppress(OSError, OverflowError):
        os.utime(path, (member.mtime, member.mtime), follow_symlinks=follow_symlinks)


def _refuse(path: str, why: str) -> NoReturn:
    raise FileExists(f"{why}: {path}", errno=errno.EEXIST, path=path)
