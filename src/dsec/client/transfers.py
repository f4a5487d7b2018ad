"""Uploads and downloads: an archive made here and unpacked there, or the other way round, counted on both sides."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dsec.client.bulk import Bulk, Cancelled, Forgotten
from dsec.client.tar_out import Counts, pack
from dsec.client.unpack import Unpacking
from dsec.client.waiting import shielded
from dsec.errors import DSecError, NodeError, ProtocolError

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["Progress", "Transferred", "download", "download_tar", "upload", "upload_tar"]

T = TypeVar("T")
_TIMES = 3
"""How often a transfer that the node has forgotten (its runtime restarted) is begun anew."""
_CANCEL_S = 4.0
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
Progress = Callable[[int], None]
"""Called now and then with the bytes of the archive that have arrived; from another thread."""


@dataclass(frozen=True)
class Transferred:
    """What an upload or download did, as both sides counted it."""

    bytes: int
    """Of file content, holes included."""
    entries: int
    """Files, directories and links."""
    skipped: tuple[str, ...] = ()
    """Paths left out, the first hundred: sockets, FIFOs, devices; links out of the tree."""
    skipped_count: int = 0


def _transfer_id() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(26))


async def upload(
    sandbox: Sandbox, local: str, query: dict[str, str | bytes], *, follow: bool, progress: Progress
) -> Transferred:
    """A file or tree of this machine into a sandbox."""

    def once(bulk: Bulk) -> Transferred:
        counts = Counts()
        end = bulk.send(pack(local, counts, follow=follow), progress)
        _compare(end, counts)
        skipped = counts.skipped_count + end["skipped"]
        return Transferred(counts.bytes, counts.entries, tuple(counts.skipped), skipped)

    return await _begun_anew(sandbox, query | {"direction": "upload"}, once)


async def upload_tar(
    sandbox: Sandbox, pieces: Iterable[bytes], query: dict[str, str | bytes], progress: Progress
) -> Transferred:
    """An archive that somebody else made. It cannot be begun anew: NodeError if it would have to be."""

    def once(bulk: Bulk) -> Transferred:
        end = bulk.send(pieces, progress)
        return Transferred(end["bytes"], end["entries"], (), end["skipped"])

    return await _begun_anew(sandbox, query | {"direction": "upload"}, once, times=1)


async def download(
    sandbox: Sandbox, target: str, query: dict[str, str | bytes], progress: Progress, **how: bool
) -> Transferred:
    """A file or tree of a sandbox to this machine; ``how`` is for Unpacking."""

    def once(bulk: Bulk) -> Transferred:
        counts = Counts()
        unpacking = Unpacking(target, counts, **how)
        end = _received(bulk, unpacking.run, progress)
        _compare(end, counts)
        return Transferred(counts.bytes, counts.entries, tuple(counts.skipped), counts.skipped_count + end["skipped"])

    return await _begun_anew(sandbox, query | {"direction": "download"}, once)


async def download_tar(
    sandbox: Sandbox, write: Callable[[memoryview], None], query: dict[str, str | bytes], progress: Progress
) -> Transferred:
    """The archive itself; ``write`` is called in another thread. NodeError if it would have to begin anew."""

    def run(more: Callable[[], bytes | memoryview]) -> None:
        while piece := more():
            write(memoryview(piece))

    def once(bulk: Bulk) -> Transferred:
        end = _received(bulk, run, progress)
        return Transferred(end["bytes"], end["entries"], (), end["skipped"])

    return await _begun_anew(sandbox, query | {"direction": "download"}, once, times=1)


def _compare(end: dict[str, Any], counts: Counts) -> None:
    if (end["bytes"], end["entries"]) != (counts.bytes, counts.entries):
        raise ProtocolError(
            f"{counts.entries} entries and {counts.bytes} bytes here are {end['entries']} and {end['bytes']} there"
        )


def _received(
    bulk: Bulk, consume: Callable[[Callable[[], bytes | memoryview]], None], progress: Progress
) -> dict[str, Any]:
    """Run a consumer that asks for more upon what arrives."""
    taken, pieces = 0, bulk.receive()

    def more() -> bytes | memoryview:
        nonlocal taken
        progress(taken)
        piece = next(pieces, b"")
        taken += len(piece)
        return piece

    try:
        consume(more)
        while more():
            pass  # until the runtime's own count
        return bulk.result
    finally:
        pieces.close()


async def _begun_anew(
    sandbox: Sandbox, query: dict[str, str | bytes], once: Callable[[Bulk], T], *, times: int = _TIMES
) -> T:
    for _ in range(times):
        transfer_id = _transfer_id()
        address = sandbox._link().bulk_address(sandbox.id)
        try:
            async with sandbox._link().transfers:
                return await _in_thread(sandbox, Bulk(address, transfer_id, query), transfer_id, once)
        except Forgotten:
            continue
    raise NodeError("the node forgot the transfer: its runtime restarted", phase="transfer", sandbox_id=sandbox.id)


async def _in_thread(sandbox: Sandbox, bulk: Bulk, transfer_id: str, once: Callable[[Bulk], T]) -> T:
    """Run it beside the event loop; cancelled, or after an error of ours, the other side is told and has ended."""
    thread = ThreadPoolExecutor(1, "dsec-transfer")
    running = asyncio.get_running_loop().run_in_executor(thread, once, bulk)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(running)
    except Forgotten:
        raise
    except BaseException as error:
        bulk.cancel()
        await shielded(_over(running), _CANCEL_S)
        if not _told_by_the_runtime(error):
            path = f"/v1/sandboxes/{sandbox.id}/transfers/{transfer_id}"
            await shielded(sandbox._link().ask("DELETE", path, dict[str, Any]), _CANCEL_S)
        raise


async def _over(running: asyncio.Future[T]) -> None:
    await asyncio.wait({running})
    if not running.cancelled() and isinstance(running.exception(), Cancelled):
        return


def _told_by_the_runtime(error: BaseException) -> bool:
    """Whether the transfer has ended there already: the error carries the sandbox that it is about."""
    return isinstance(error, DSecError) and error.sandbox_id is not None and error.phase != "stream"
