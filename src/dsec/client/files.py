"""Files inside a sandbox, read and written as a user of the sandbox would."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NoReturn

from dsec.api.types import FileWritten
from dsec.client.link import decode_answer
from dsec.client.waiting import Patience
from dsec.errors import InvalidArgument, NodeError, Unsupported

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["Files"]

_PATIENCE_S = 30.0
_PIECE = 256 * 1024


class Files:
    """``sandbox.files``. Paths are POSIX; relative ones begin at the sandbox's working directory."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self._sandbox.id}/files"

    async def read(
        self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> bytes:
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
        self, path: str | os.PathLike[str], data: bytes | str, *, mode: int | None = None, parents: bool = False,
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

    async def stat(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.stat is not in this version")

    async def list(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.list is not in this version")

    async def mkdir(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.mkdir is not in this version")

    async def move(self, source: str, target: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.move is not in this version")

    async def remove(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.remove is not in this version")

    async def exists(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.exists is not in this version")

    def watch(self, path: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.watch is not in this version")

    async def upload(self, source: str, target: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.upload is not in this version")

    async def download(self, source: str, target: str) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported("files.download is not in this version")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])
