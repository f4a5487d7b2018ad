"""``dsec cp``: files and trees in and out of a sandbox, as ``docker cp`` has it."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from dsec.cli.printing import print_json, say
from dsec.cli.session import Json, command, with_client
from dsec.cli.transfer_progress import TransferBar
from dsec.cli.values import size
from dsec.errors import FileMissing, FileNotDirectory, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.client.sandbox import Sandbox
    from dsec.client.transfers import Transferred

__all__ = ["add", "placed", "split"]

Kind = Literal["file", "directory"]
_PIECE = 1 << 20

Archive = Annotated[bool, typer.Option("-a", "--archive", help="Keep owner and group.")]
FollowLink = Annotated[bool, typer.Option("-L", "--follow-link", help="Copy what SRC leads to, not the link.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing.")]
User = Annotated[str | None, typer.Option("-u", "--user", help="As this user of the sandbox: NAME or UID[:GID].")]


def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="PATH, SANDBOX:PATH, or - for a tar archive.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="SANDBOX:PATH, PATH, or - for a tar archive.")],
    archive: Archive = False,
    follow_link: FollowLink = False,
    user: User = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Copy files and directories into a sandbox or out of it.

    A directory that exists as DST receives SRC under its own name (SRC/. only what it holds); one that does not is
    made. ``-`` reads an archive from standard input, or writes one to standard output.
    """
    here, there = split(source), split(target)
    if (here is None) == (there is None):
        raise InvalidArgument(
            "one of SRC and DST names a sandbox", remedy="dsec cp FILE SANDBOX:/PATH, or SANDBOX:/PATH FILE"
        )

    async def body(client: DSecClient) -> Transferred:
        if there is not None:
            sandbox = await client.get(there[0])
            return await _Copy(sandbox, archive, follow_link, user, quiet or json).into(source, there[1])
        assert here is not None
        sandbox = await client.get(here[0])
        return await _Copy(sandbox, archive, follow_link, user, quiet or json).out_of(here[1], target)

    done = with_client(body)
    for path in done.skipped:
        say(f"dsec: left out {path!r}")
    if json:
        print_json({"bytes": done.bytes, "entries": done.entries, "skipped": done.skipped_count})
    elif not quiet and target != "-":
        say(f"Copied {done.entries} {'entry' if done.entries == 1 else 'entries'}, {size(done.bytes)}, to {target}")


def split(text: str) -> tuple[str, str] | None:
    """(sandbox, path) of ``SANDBOX:PATH``; None for a path of this machine, which may have colons after a slash."""
    name, colon, path = text.partition(":")
    if not colon or not name or text.startswith((".", "/")) or "/" in name:
        return None
    return name, path or "."


async def placed(source: str, kind: Kind, target: str, look: Callable[[str], Awaitable[Kind | None]]) -> str:
    """Where a copy goes, by Docker's rules; raises InvalidArgument for a directory onto a file."""
    there = await look(target)
    if there is None:
        if kind == "file" and target.endswith("/"):
            raise InvalidArgument(f"the directory {target} does not exist")
        return target
    if there == "file":
        if kind == "directory" or target.endswith("/"):
            raise InvalidArgument(f"{target} is a file, not a directory")
        return target
    if kind == "directory" and (source == "." or source.endswith("/.")):
        return target
    return posixpath.join(target, posixpath.basename(source.rstrip("/")) or ".")


class _Copy:
    def __init__(self, sandbox: Sandbox, owners: bool, follow: bool, user: str | None, quiet: bool) -> None:
        self._sandbox = sandbox
        self._owners = owners
        self._follow = follow
        self._user = user
        self._quiet = quiet

    async def into(self, source: str, target: str) -> Transferred:
        if source == "-":
            return await self._archive_in(target)
        kind = _kind_here(source, self._follow)
        if kind is None:
            raise FileMissing(f"no such file or directory: {source!r}", path=source, errno=2)
        where = await placed(source, kind, target, self._look)
        total = _size_here(source) if kind == "file" else None
        with TransferBar(source, total=total, quiet=self._quiet) as bar:
            return await self._sandbox.files.upload(
                source, where, user=self._user, follow=self._follow, owners=self._owners, progress=bar.show
            )

    async def out_of(self, source: str, target: str) -> Transferred:
        if target == "-":
            return await self._archive_out(source)
        found = await self._sandbox.files.stat(source, follow=self._follow, user=self._user)
        kind: Kind = "directory" if found.is_dir else "file"
        where = await placed(source, kind, target, _look_here)
        with TransferBar(source, total=found.size if found.is_file else None, quiet=self._quiet) as bar:
            return await self._sandbox.files.download(
                source, where, user=self._user, follow=self._follow, owners=self._owners, links="all",
                progress=bar.show,
            )  # fmt: skip

    async def _archive_in(self, target: str) -> Transferred:
        from dsec.client.transfers import upload_tar

        if await self._look(target) != "directory":
            raise InvalidArgument(f"{target} is no directory: an archive is unpacked into one")
        query = self._query(target) | {"owners": "true" if self._owners else "false"}
        with TransferBar("archive", total=None, quiet=self._quiet) as bar:
            return await upload_tar(self._sandbox, _standard_input(), query, bar.show)

    async def _archive_out(self, source: str) -> Transferred:
        from dsec.client.transfers import download_tar

        if sys.stdout.isatty():
            raise InvalidArgument("standard output is a terminal", remedy="dsec cp SANDBOX:PATH - > FILE.tar")
        name = posixpath.basename(posixpath.normpath(source))
        query = self._query(source) | {"follow": "true" if self._follow else "false"}
        if name not in ("", ".", ".."):
            query["name"] = os.fsencode(name)
        output = sys.stdout.buffer
        with TransferBar(source, total=None, quiet=self._quiet) as bar:
            done = await download_tar(self._sandbox, lambda piece: _written(output, piece), query, bar.show)
        output.flush()
        return done

    def _query(self, path: str) -> dict[str, str | bytes]:
        return {"path": os.fsencode(path)} | ({} if self._user is None else {"user": self._user})

    async def _look(self, path: str) -> Kind | None:
        try:
            found = await self._sandbox.files.stat(path, user=self._user)
        except (FileMissing, FileNotDirectory):
            return None
        return "directory" if found.is_dir else "file"


def _kind_here(path: str, follow: bool) -> Kind | None:
    if os.path.isdir(path) and (follow or path.endswith("/") or not os.path.islink(path)):  # noqa: PTH112, PTH114
        return "directory"
    return "file" if os.path.lexists(path) else None


def _size_here(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0  # noqa: PTH110, PTH202


async def _look_here(path: str) -> Kind | None:
    return _kind_here(path, follow=True)


def _standard_input() -> Iterator[bytes]:
    while piece := os.read(sys.stdin.fileno(), _PIECE):
        yield piece


def _written(output: BinaryIO, piece: memoryview) -> None:
    output.write(piece)


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "cp")(cp)
