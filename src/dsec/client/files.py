"""Files inside a sandbox, read and written as a user of the sandbox would."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from dsec.api.types import FileWritten
from dsec.client.file_records import FileEvent, FileInfo, event_of, info_of, listed, records
from dsec.client.link import decode_answer
from dsec.client.transfers import Progress, Transferred, download, upload
from dsec.client.waiting import Patience
from dsec.client.wire import Lost
from dsec.errors import (
    FileError,
    FileMissing,
    FileNotDirectory,
    InvalidArgument,
    NodeError,
    OutcomeUnknown,
    SandboxGone,
)

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["Files"]

Path = str | os.PathLike[str]
_PATIENCE_S = 30.0
_PIECE = 256 * 1024


class Files:
    """``sandbox.files``. Paths are POSIX; relative ones begin at the sandbox's working directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self._sandbox.id}/files"

    async def read(self, path: Path, *, offset: int = 0, limit: int | None = None, user: str | None = None) -> bytes:
        """A file's bytes, or ``limit`` of them from ``offset`` on.

        Raises FileMissing, FileIsDirectory, FileDenied, …
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidArgument("offset and limit are numbers of bytes, 0 or more")
        query: dict[str, str | bytes] = {"path": os.fsencode(path)}
        if offset:
            query["offset"] = str(offset)
        if limit is not None:
            query["limit"] = str(limit)
        if user is not None:
            query["user"] = user
        patience = Patience(_PATIENCE_S)
        while True:
            try:
                async with self._sandbox._link().exchange("GET", self._path, query) as answer:
                    return await answer.read()
            except NodeError as error:
                await patience.before_retry(error)

    async def write(
        self, path: Path, data: bytes | str, *, mode: int | None = None, parents: bool = False,
        user: str | None = None,
    ) -> FileWritten:  # fmt: skip
        """Replace a file by ``data`` (text as UTF-8).

        ``mode`` as chmod has it; ``parents`` makes missing directories.
        """
        body = data.encode() if isinstance(data, str) else bytes(data)
        query: dict[str, str | bytes] = {"path": os.fsencode(path)}
        if mode is not None:
            query["mode"] = f"{mode:o}"
        if parents:
            query["parents"] = "true"
        if user is not None:
            query["user"] = user
        patience = Patience(_PATIENCE_S)
        while True:
            sent = body if len(body) <= _PIECE else _pieces(body)
            try:
                async with self._sandbox._link().exchange(
                    "PUT", self._path, query, sent, "application/octet-stream", len(body)
                ) as answer:
                    return decode_answer(await answer.read(), FileWritten)
            except NodeError as error:
                await patience.before_retry(error)

    async def stat(self, path: Path, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What a path names; with ``follow`` what a link leads to. Raises FileMissing, FileDenied, …

        Files of /proc are refused: they would be those of the process that looks.
        """
        answer = await self._call("stat", {"path": os.fsencode(path), "follow": follow}, user, again=True)
        return info_of(answer.get("info"), os.fsdecode(path))

    async def exists(self, path: Path, *, follow: bool = True, user: str | None = None) -> bool:
        """Whether a path names something, as ``os.path.exists`` has it: a link that leads nowhere does not."""
        try:
            await self.stat(path, follow=follow, user=user)
        except (FileMissing, FileNotDirectory):
            return False
        except FileError as error:
            if error.errno == errno.ELOOP:
                return False
            raise
        return True

    async def list(self, path: Path = ".", *, depth: int = 1, user: str | None = None) -> AsyncGenerator[FileInfo]:
        """What a directory holds, in no order, streamed: ``async for info in files.list(path)``.

        ``depth`` 2 gives what its directories hold too, and so on up to 64. Links are not followed, directories that
        may not be read are not entered. Raises FileMissing, FileNotDirectory, FileDenied; NodeError if the
        connection breaks after the first entry.
        """
        directory = os.fsdecode(path)
        params = self._params(user) | {"path": os.fsencode(path), "depth": depth}
        patience, begun = Patience(_PATIENCE_S), False
        while True:
            found = records(self._sandbox._link(), "file.list", params, lambda record: listed(record, directory))
            try:
                async with aclosing(found):
                    async for info in found:
                        if info is not None:
                            begun = True
                            yield info
                return
            except NodeError as error:
                if begun:
                    raise
                await patience.before_retry(error)

    async def mkdir(
        self, path: Path, *, parents: bool = False, exist_ok: bool = False, mode: int | None = None,
        user: str | None = None,
    ) -> None:  # fmt: skip
        """Make a directory, as ``pathlib.Path.mkdir`` does. ``mode`` as chmod has it, exactly; default 755.

        Raises FileExists, FileMissing (no parent), FileDenied; OutcomeUnknown if the connection broke and it cannot
        be known whether the directory was made (never with ``exist_ok``).
        """
        call = {"path": os.fsencode(path), "parents": parents, "exist_ok": exist_ok, "mode": mode}
        await self._call("mkdir", call, user, again=exist_ok)

    async def move(self, source: Path, target: Path, *, overwrite: bool = False, user: str | None = None) -> None:
        """Rename, in one step. ``target`` is the new path, not a directory to move into.

        Without ``overwrite`` a target that exists is FileExists; with it a file or an empty directory is replaced,
        as by ``os.replace``. Between filesystems, and for directories of the image, FileError with EXDEV: ``mv``
        copies such. OutcomeUnknown as ``mkdir``.
        """
        call = {"source": os.fsencode(source), "target": os.fsencode(target), "overwrite": overwrite}
        await self._call("move", call, user, again=False)

    async def remove(
        self, path: Path, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None
    ) -> int:
        """Remove a file, a link (never what it leads to) or an empty directory; ``recursive``: with all it holds.

        Returns how many files and directories were removed. Raises FileMissing, FileDenied, FileError with
        ENOTEMPTY; OutcomeUnknown as ``mkdir`` (never with ``missing_ok``).
        """
        call = {"path": os.fsencode(path), "recursive": recursive, "missing_ok": missing_ok}
        answer = await self._call("remove", call, user, again=missing_ok)
        return int(answer.get("entries", 0))

    async def watch(
        self, path: Path, *, recursive: bool = False, user: str | None = None
    ) -> AsyncGenerator[FileEvent]:
        """Changes of a file or directory as they happen, until the iterator is closed, the path or the sandbox gone.

        A reader that is too slow, or whose connection broke, gets an ``overflow`` event: what happened meanwhile is
        not told. Raises FileMissing, FileDenied; CapacityError beyond 32 watches of a sandbox.
        """
        watched = os.fsdecode(path)
        params = self._params(user) | {"path": os.fsencode(path), "recursive": recursive}
        patience, begun = Patience(_PATIENCE_S), False
        while True:
            found = records(self._sandbox._link(), "file.watch", params, lambda record: event_of(record, watched))
            try:
                async with aclosing(found):
                    async for event in found:
                        patience.answered()
                        if event is not None:
                            yield event
                        elif begun:
                            yield FileEvent("overflow", watched)
                        begun = True
                return
            except SandboxGone:
                if begun:
                    return
                raise
            except NodeError as error:
                await patience.before_retry(error)

    def _params(self, user: str | None) -> dict[str, Any]:
        return {"sandbox_id": self._sandbox.id, "user": user}

    async def _call(self, name: str, fields: dict[str, Any], user: str | None, *, again: bool) -> dict[str, Any]:
        """One call. After a lost connection it is made again only where that does no harm."""
        params = self._params(user) | {"call": {name: fields}}
        link, patience = self._sandbox._link(), Patience(_PATIENCE_S)
        while True:
            sent = False
            try:
                wire = await link.wire()
                sent = True
                return await wire.call("file.call", params)
            except Lost as error:
                if sent and not again:
                    raise OutcomeUnknown(
                        f"the connection broke: whether the {name} was done is not known",
                        sandbox_id=self._sandbox.id,
                        remedy="Look whether it was done before doing it again",
                    ) from None
                await patience.before_retry(error)
            except NodeError as error:
                if sent:
                    raise
                await patience.before_retry(error)

    async def upload(
        self, local: Path, remote: Path, *, user: str | None = None, parents: bool = False, follow: bool = True,
        owners: bool = False, progress: Progress | None = None,
    ) -> Transferred:  # fmt: skip
        """Copy a file or a tree of this machine into the sandbox.

        A file becomes the file ``remote`` (below it, under its own name, where ``remote`` ends with "/"); what a
        directory holds goes into the directory ``remote``, made if it is missing, over what is there. Modes, times,
        links and holes are kept; owner is the user, or with ``owners`` the one here. Every file appears whole: after
        a cancellation those that had arrived stay, nothing half-written does. ``follow``: what ``local`` leads to,
        where it is a link. ``progress`` is called in another thread with the bytes of the archive that have arrived.

        Raises FileError for what cannot be read here or written there.
        """
        source, target = os.fsdecode(local), os.fsencode(remote)
        if target.endswith(b"/") and not _is_directory(source):
            target += _last_part(os.fsencode(source))
        query = self._query(target, user) | {"parents": _flag(parents), "owners": _flag(owners)}
        return await upload(self._sandbox, source, query, follow=follow, progress=progress or _quiet)

    async def download(
        self, remote: Path, local: Path, *, user: str | None = None, follow: bool = True, owners: bool = False,
        set_ids: bool = False, links: Literal["inside", "all"] = "inside", progress: Progress | None = None,
    ) -> Transferred:  # fmt: skip
        """Copy a file or a tree out of the sandbox, as ``upload`` does into it.

        What a sandbox gives is not trusted: nothing is written outside ``local``; set-ID bits are dropped unless
        ``set_ids``, owners unless ``owners``; links that lead out of the tree are left out (and told in ``skipped``)
        unless ``links="all"``. A single file replaces ``local`` in one step. Sockets, FIFOs, devices and what is
        mounted below ``remote`` are left out.
        """
        source, target = os.fsencode(remote), os.fsdecode(local)
        if target.endswith("/") and not (await self.stat(remote, follow=follow, user=user)).is_dir:
            target += os.fsdecode(_last_part(source))
        query = self._query(source, user) | {"follow": _flag(follow)}
        return await download(
            self._sandbox, target, query, progress or _quiet, owners=owners, set_ids=set_ids,
            all_links=links == "all",
        )  # fmt: skip

    @staticmethod
    def _query(path: bytes, user: str | None) -> dict[str, str | bytes]:
        return {"path": path} | ({} if user is None else {"user": user})


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _last_part(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2]


def _quiet(_: int) -> None:
    return


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])
