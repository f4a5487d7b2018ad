"""A sandbox, as its user holds it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack
from urllib.parse import quote

import msgspec

from dsec.api import types
from dsec.api.audit import AuditEvents
from dsec.api.ids import check_exec_id, check_key, check_sandbox_id, new_key
from dsec.api.network import Network, NetworkInfo
from dsec.api.packing import PackedLayer, PackRequest, Residue
from dsec.api.signals import signal_number
from dsec.client.execs import Exec
from dsec.client.files import Files
from dsec.client.killing import kill_exec
from dsec.client.link import Link
from dsec.client.logs import LogEvent, read_logs
from dsec.client.owned import disown, own_exec
from dsec.client.ports import Url, url_of
from dsec.client.protecting import ProtectedPath, verify
from dsec.client.results import ExecResult, ProofOfDeath, Stopped
from dsec.client.running import ExecRequest, Run
from dsec.client.session import SessionOpening
from dsec.client.stdin import Stdin
from dsec.errors import CommandError, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.args import SandboxFields
    from dsec.client.client import DSecClient
    from dsec.client.snapshots import Forking, Snapshot

__all__ = ["PIPE", "Sandbox"]

PIPE: Final = "pipe"
"""For ``spawn(stdin=PIPE)``."""
Word = str | bytes | os.PathLike[str]
_DEFAULT_OUTPUT = 10 * 1024 * 1024


class _Executions(msgspec.Struct, frozen=True):
    execs: list[types.ExecInfo]


class _Story(msgspec.Struct, frozen=True):
    story: list[types.StoryEntry]


class _Ports(msgspec.Struct, frozen=True):
    ports: list[types.PortInfo]


class _Endpoints(msgspec.Struct, frozen=True):
    endpoints: list[types.EndpointInfo]


class Sandbox:
    """Made by ``DSecClient.sandbox``, ``sandboxes``, ``attach`` or ``get``.

    Holds an ID, not a connection: losing it ends nothing.
    """

    def __init__(self, client: DSecClient, sandbox_id: str, info: types.SandboxInfo | None = None) -> None:
        self._client = client
        self._info = info
        self.id = check_sandbox_id(sandbox_id)
        self.files = Files(self)

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sandbox) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sandbox, (self._client, self.id, self._info)

    def _link(self) -> Link:
        return self._client._link()

    # What it is

    @property
    def backend(self) -> str:
        """container, microvm or vm. Of an attached sandbox known only after ``info()``."""
        return self._known().backend

    @property
    def labels(self) -> dict[str, str]:
        """Its labels. Of an attached sandbox known only after ``info()``."""
        return dict(self._known().labels)

    def _known(self) -> types.SandboxInfo:
        if self._info is None:
            raise InvalidArgument("this sandbox was attached by ID; await its info() first", sandbox_id=self.id)
        return self._info

    async def info(self) -> types.SandboxInfo:
        """State, limits, and once it has ended cause, exit code and usage; for 24 h after the end too."""
        self._info = await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}", types.SandboxInfo)
        return self._info

    async def story(self) -> list[types.StoryEntry]:
        """Every transition: when, what, why, by whom."""
        found = await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/story", _Story)
        return found.story

    async def usage(self) -> types.Usage:
        """What it has used so far."""
        return await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/usage", types.Usage)

    async def execs(self) -> list[types.ExecInfo]:
        """Its execs, running and ended, in the order of their start."""
        found = await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/execs", _Executions)
        return found.execs

    def logs(self, *, follow: bool = False, exec_id: str | None = None) -> AsyncGenerator[LogEvent]:
        """Output of the main process, or else of all execs in the order of their start; of the stopped: what was
        kept.

        ExecStarted comes before each exec's output. ``follow`` goes on until the sandbox ends.
        """
        return read_logs(self, follow=follow, exec_id=exec_id)

    # Running programs

    async def exec(
        self, *argv: Word, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str | None = None,
        timeout_s: float | None = None, grace_s: float = 2.0, stdin: bytes | str | None = None,
        merge_stderr: bool = False, max_output_bytes: int = _DEFAULT_OUTPUT, check: bool = False,
        key: str | None = None,
    ) -> ExecResult:  # fmt: skip
        """Run a program to its end. A non-zero exit is data, unless ``check``.

        ``timeout_s`` is the program's; when it passes, SIGTERM goes to its process group and after ``grace_s`` all
        is killed. ``merge_stderr`` gives the program one descriptor for both outputs, which come in their true order
        as ``output``. ``max_output_bytes`` is per stream; of longer ones head and tail are kept. ``key`` names the
        exec: the same key gives the same result and never a second run. Cancelling this kills the program and waits
        for the confirmation.

        Raises ExecutableNotFound, NotExecutable, InvalidArgument (a user or cwd that does not exist), SandboxGone,
        OutcomeUnknown, NodeError; with ``check`` ExecFailed and ExecTimeout.
        """
        request = ExecRequest(
            self.id, check_key(key) if key is not None else new_key(), argv=_words(argv), cwd=cwd, env=env or {},
            user=user, timeout_s=timeout_s, grace_s=grace_s, stdin=stdin is not None,
            max_output_bytes=max_output_bytes, merge_stderr=merge_stderr,
        )  # fmt: skip
        return await self._to_its_end(request, stdin, check)

    async def run_shell(
        self, script: str, *, login: bool = False, cwd: str | None = None, env: Mapping[str, str] | None = None,
        user: str | None = None, timeout_s: float | None = None, grace_s: float = 2.0,
        stdin: bytes | str | None = None, merge_stderr: bool = False, max_output_bytes: int = _DEFAULT_OUTPUT,
        check: bool = False, key: str | None = None,
    ) -> ExecResult:  # fmt: skip
        """Run a script in /bin/bash, or else /bin/sh, with ``-c`` (``-lc`` with ``login``); otherwise as ``exec``.

        A script may be 10 MiB long. One that is too long for an argument (128 KiB) is read from a file of the node's
        by a ``-c`` of its own: $0, standard input and exit codes are the same.
        """
        request = ExecRequest(
            self.id, check_key(key) if key is not None else new_key(), shell=_script(script), login=login,
            cwd=cwd, env=env or {}, user=user, timeout_s=timeout_s, grace_s=grace_s, stdin=stdin is not None,
            max_output_bytes=max_output_bytes, merge_stderr=merge_stderr,
        )  # fmt: skip
        return await self._to_its_end(request, stdin, check)

    async def _to_its_end(self, request: ExecRequest, stdin: bytes | str | None, check: bool) -> ExecResult:
        link = self._link()
        run = Run(
            self._link, self.id, request.exec_id, request, max_output_bytes=request.max_output_bytes, eager=True
        )
        owned = own_exec(link.address, self.id, request.exec_id)
        feeding = None
        if run.stdin is not None and stdin is not None:
            feeding = asyncio.get_running_loop().create_task(_feed(run.stdin, stdin))
        try:
            result = await run.result()
        except asyncio.CancelledError:
            await run.kill_confirmed(request.grace_s)
            raise
        finally:
            disown(owned)
            if feeding is not None:
                feeding.cancel()
        return result.check() if check else result

    async def spawn(
        self, *argv: Word, shell: str | None = None, pty: types.Pty | None = None,
        stdin: Literal["pipe"] | None = None, cwd: str | None = None, env: Mapping[str, str] | None = None,
        user: str | None = None, timeout_s: float | None = None, grace_s: float = 2.0, merge_stderr: bool = False,
        max_output_bytes: int = _DEFAULT_OUTPUT, backpressure: bool = False, key: str | None = None,
    ) -> Exec:  # fmt: skip
        """Start a program, or a script with ``shell=``, and return once it runs. Raises as ``exec`` does.

        ``pty``: its standard descriptors are a new terminal of this size, whose output is all Stdout; TERM and a
        UTF-8 locale are set where neither image nor caller say otherwise.

        ``backpressure``: a program that nobody reads is held back instead of losing old output.
        """
        if pty is not None and not isinstance(pty, types.Pty):
            raise InvalidArgument(f"pty is a dsec.Pty(rows, cols), not {pty!r}")
        if stdin not in (None, PIPE):
            raise InvalidArgument("spawn takes stdin=PIPE or None; exec and run_shell take bytes")
        request = ExecRequest(
            self.id, check_key(key) if key is not None else new_key(), argv=_words(argv) if argv else None,
            shell=None if shell is None else _script(shell), cwd=cwd, env=env or {}, user=user, timeout_s=timeout_s,
            grace_s=grace_s, stdin=stdin == PIPE, max_output_bytes=max_output_bytes, backpressure=backpressure,
            merge_stderr=merge_stderr, pty=pty,
        )  # fmt: skip
        made = Exec(self, request.exec_id, request)
        try:
            await made._run.started()
        except asyncio.CancelledError:
            await made._run.kill_confirmed(grace_s)
            raise
        return made

    def open_session(
        self, shell: str | Sequence[str] | None = None, *, cwd: str | None = None,
        env: Mapping[str, str] | None = None, user: str | None = None, key: str | None = None,
    ) -> SessionOpening:  # fmt: skip
        """A shell that keeps its state between scripts: await it, or ``async with``, which closes it at the end.

        ``shell``: a program, or the words that run it (``("/bin/busybox", "sh")``), that reads its commands from the
        file that is its last argument: bash, dash, busybox sh. None: the first of /bin/bash, /bin/sh. ``key`` names
        it: the same key gives the same session. Raises as ``spawn`` does.
        """
        return SessionOpening(self, shell, cwd=cwd, env=env, user=user, key=key)

    def attach(self, exec_id: str, *, offset: int | tuple[int, int] = 0) -> Exec:
        """An exec by its ID, running or ended, whoever started it; makes no round trip.

        ``events`` begin at this byte of each output, or at these of standard output and error. Any number of clients
        may attach, read at their own pace and write; of a stopped sandbox the last 64 KiB are kept.
        """
        offsets = (offset, offset) if isinstance(offset, int) else offset
        if len(offsets) != 2 or min(offsets) < 0:
            raise InvalidArgument(f"an offset is a number of bytes, or one of each output, not {offset!r}")
        return Exec(self, check_exec_id(exec_id), None, offsets)

    # Files, short

    async def read(
        self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> bytes:
        """``files.read``."""
        return await self.files.read(path, offset=offset, limit=limit, user=user)

    async def write(
        self,
        path: str | os.PathLike[str],
        data: bytes | str,
        *,
        mode: int | None = None,
        parents: bool = False,
        user: str | None = None,
    ) -> types.FileWritten:
        """``files.write``."""
        return await self.files.write(path, data, mode=mode, parents=parents, user=user)

    async def verify_protected(self, expected: Mapping[str, str] | None = None) -> list[ProtectedPath]:
        """Read its protected paths anew and give their digests, compared with ``expected`` (path → digest).

        Digests to expect: those of a fresh sandbox of the same layers. Raises InvalidArgument for a path that is not
        protected here, FileError when something cannot be read.
        """
        return await verify(self.files, (await self.info()).protected, expected)

    # Ways in and out

    async def expose(self, port: int) -> Url:
        """Make a port reachable through the API, at an origin of its own; the same again gives the same token.

        Open connections keep the sandbox from being idle. Lasts until ``unexpose`` or the sandbox's end.
        """
        body = types.PortRequest(port=port)
        found = await self._link().ask_patiently("POST", f"/v1/sandboxes/{self.id}/ports", types.PortInfo, body=body)
        return url_of(found, self._link().address.url)

    async def unexpose(self, port: int) -> None:
        """Take a port back; its connections are cut when this returns. One that is not exposed is no error."""
        await self._link().ask_patiently("DELETE", f"/v1/sandboxes/{self.id}/ports/{port}", dict[str, Any])

    async def ports(self) -> list[Url]:
        """The exposed ports, by number."""
        found = await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/ports", _Ports)
        return [url_of(each, self._link().address.url) for each in found.ports]

    async def endpoints(self) -> list[types.EndpointInfo]:
        """Its endpoints, and what they have done so far (as of some tenths of a second ago)."""
        found = await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/endpoints", _Endpoints)
        return found.endpoints

    async def close_endpoint(self, name: str) -> None:
        """Let an endpoint answer no more, for good; its connections are cut when this returns. Raises NotFound."""
        path = f"/v1/sandboxes/{self.id}/endpoints/{quote(name, safe='')}/close"
        await self._link().ask_patiently("POST", path, dict[str, Any], body={})

    # Its network

    async def set_network(self, network: str | Mapping[str, Any] | Network) -> NetworkInfo:
        """Put a policy in place of the present one, all at once; what does not fit it is cut when this returns.

        ``network`` is what a create takes. Raises InvalidArgument, NotFound for a group that the node does not have,
        SandboxGone.
        """
        return await self._link().ask_patiently(
            "PUT", f"/v1/sandboxes/{self.id}/network", NetworkInfo, body={"network": network}
        )

    async def network(self) -> NetworkInfo:
        """Its network policy, and what was counted so far."""
        return await self._link().ask_patiently("GET", f"/v1/sandboxes/{self.id}/network", NetworkInfo)

    async def events(self, start: str = "") -> AuditEvents:
        """What it tried and did not get: connections, names, calls to the kernel, limits.

        ``start``: the ``next`` of an earlier answer, or nothing for all that is kept.

        Kept are the latest 256 of its network and 256 of the rest, of an ended sandbox 64 each for 24 h; ``dropped``
        says how many were lost. docs/events.md says which there are and when they come.
        """
        path = f"/v1/sandboxes/{self.id}/events"
        return await self._link().ask_patiently("GET", path, AuditEvents, query={"start": start})

    # Ending it

    async def stop(
        self, *, keep: Literal["nothing", "disk"] = "nothing", keep_s: float = 3600, grace_s: float = 0.0
    ) -> Stopped:
        """Stop it; returns when the node has seen that no process is left. Stopping a stopped one gives the same
        answer.

        ``grace_s``: how long programs may react to SIGTERM first. ``keep="disk"``: what it wrote is kept for
        ``keep_s`` (at most a day, not over a reboot), and a sandbox made with ``from_disk=`` begins with a copy of
        it. Raises Conflict when it had ended without keeping.
        """
        body = types.StopRequest(grace_s=grace_s, keep=keep, keep_s=keep_s)
        found = await self._link().ask_patiently("POST", f"/v1/sandboxes/{self.id}/stop", types.Stopped, body=body)
        return Stopped(
            id=found.id, cause=found.cause, ended_at=found.ended_at,
            proof_of_death=ProofOfDeath(found.processes, found.waited_s), usage=found.usage,
            kept_until=found.kept_until,
        )  # fmt: skip

    async def kill(self, exec_id: str, *, signal: int | str | None = None, grace_s: float = 2.0) -> None:
        """Kill one exec by its ID (SIGTERM, after ``grace_s`` everything), confirmed; or only send it ``signal``, by
        number or name.
        """
        number = None if signal is None else signal_number(signal)
        await kill_exec(self._link(), self.id, exec_id, signal=number, grace_s=grace_s)

    async def remove(self, *, force: bool = False) -> None:
        """Drop what is kept of a stopped sandbox; ``force`` stops a running one first. Raises Conflict without it."""
        query = {"force": "true"} if force else None
        await self._link().ask_patiently("DELETE", f"/v1/sandboxes/{self.id}", dict[str, Any], query=query)

    # Pausing

    async def pause(self) -> types.Paused:
        """Let every process in it stand still; returns once they do (or, ``partial``, after 2 s).

        Its idle time stops, its lifetime and the timeouts of its execs go on. An exec or a file operation resumes
        it. Raises SandboxGone; Conflict when something entered it meanwhile.
        """
        return await self._link().ask_patiently("POST", f"/v1/sandboxes/{self.id}/pause", types.Paused)

    async def resume(self) -> None:
        """Let a paused one go on; harmless when it is not paused. Raises SandboxGone."""
        await self._link().ask_patiently("POST", f"/v1/sandboxes/{self.id}/resume", dict[str, Any])

    # Copies of it

    async def snapshot(self, *, memory: bool = False, keep_s: float = 3600.0, key: str | None = None) -> Snapshot:
        """Keep what it has written as it is now, for ``keep_s`` (at most a day, not over a reboot).

        What is in memory is written out first; then it stands still for some milliseconds, so that no write is there
        without those that came before it. A paused one stays paused. ``client.sandbox(snapshot.args)`` begins with a
        copy. The same ``key`` gives the same snapshot. Raises SandboxGone, CapacityError, InvalidArgument, NodeError;
        Unsupported with ``memory``.
        """
        return await self._client.snapshots._take(self.id, memory=memory, keep_s=keep_s, key=key)

    def fork(
        self, n: int, *, key: str | None = None, deadline_s: float = 120.0,
        on_full: Literal["wait", "raise"] = "wait", **fields: Unpack[SandboxFields],
    ) -> Forking:  # fmt: skip
        """``n`` sandboxes that begin with a copy of what it has written, all of the same moment; each as it is ready.

        They have its image, layers, limits, variables, labels, ways out, profile and protected paths unless
        ``fields`` (SandboxArgs') say otherwise, its job where this object has one; no name, no main process without
        ``command=``. What one writes no other sees, and nothing is copied before it is written. An error of one is in
        its Created. The same ``key`` gives the same sandboxes.
        """
        return self._client.snapshots._fork(
            self.id, n, key=key, deadline_s=deadline_s, on_full=on_full, fields=fields
        )

    async def pack_diff(
        self, reference: str, *, residue: Residue | None = None, description: str = "",
        commands: Sequence[str] | None = None, key: str | None = None,
    ) -> PackedLayer:  # fmt: skip
        """Make a layer of what it has written, as it is now, and let the tag ``workspace/NAME:VERSION`` mean it.

        It stands still for some milliseconds and runs on. Package caches, build trees, logs, histories and
        credentials are left out, by ``residue``; ``removed`` of the result says what. Of a sandbox that has a
        workspace, a new workspace holds that too; ``toolkit/NAME:VERSION`` holds only what it wrote itself.
        ``commands`` say how it came about; without them those that were run in it are noted. The same ``key`` is the
        same moment and layer. Raises SandboxGone, InvalidArgument, Conflict, CapacityError, Unsupported (what no
        layer can hold), DeadlineExceeded, NodeError.
        """
        body = PackRequest(
            key=new_key() if key is None else check_key(key), reference=reference,
            residue=Residue() if residue is None else residue, description=description,
            commands=None if commands is None else list(commands),
        )  # fmt: skip
        path = f"/v1/sandboxes/{self.id}/pack"
        return await self._link().ask_patiently("POST", path, PackedLayer, body=body)


def _words(argv: tuple[Word, ...]) -> tuple[bytes, ...]:
    return tuple(os.fsencode(word) for word in argv)


def _script(script: str) -> bytes | str:
    """As text where it is text; Python's escapes for bytes that are no UTF-8 become those bytes again."""
    escaped = not script.isascii() and any("\ud800" <= each <= "\udfff" for each in script)
    return os.fsencode(script) if escaped else script


async def _feed(stdin: Stdin, data: bytes | str) -> None:
    with suppress(CommandError):
        await stdin.write(data)
        await stdin.close()
