"""Sandbox, Exec and Files for plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from dsec.client import execs, files, sandbox, session, stdin
from dsec.client.creating import CreatingMany as _CreatingMany
from dsec.client.creating import Keeper
from dsec.client.results import Created
from dsec.client.snapshots import Forking
from dsec.sync.mirror import Mirror, blocking, blocking_as, iterating, plain
from dsec.sync.portal import iterate, run

__all__ = ["CreatingMany", "Exec", "Files", "Sandbox", "Session", "Stdin"]


class Files(Mirror[files.Files]):
    """``sandbox.files``."""

    read = blocking(files.Files.read)
    write = blocking(files.Files.write)
    stat = blocking(files.Files.stat)
    list = iterating(files.Files.list)
    mkdir = blocking(files.Files.mkdir)
    move = blocking(files.Files.move)
    remove = blocking(files.Files.remove)
    exists = blocking(files.Files.exists)
    watch = iterating(files.Files.watch)
    upload = blocking(files.Files.upload)
    download = blocking(files.Files.download)


class Stdin(Mirror[stdin.Stdin]):
    """``exec.stdin``."""

    write = blocking(stdin.Stdin.write)
    close = blocking(stdin.Stdin.close)


class Exec(Mirror[execs.Exec]):
    """A program that runs while its caller does other things."""

    @property
    def id(self) -> str:
        """Its ID."""
        return self._core.id

    @property
    def stdin(self) -> Stdin:
        """Standard input, when it was spawned with ``stdin=PIPE``; raises InvalidArgument otherwise."""
        return Stdin(self._core.stdin)

    events = iterating(execs.Exec.events)
    lines = iterating(execs.Exec.lines)
    info = blocking(execs.Exec.info)
    poll = blocking(execs.Exec.poll)
    wait = blocking(execs.Exec.wait)
    signal = blocking(execs.Exec.signal)
    kill = blocking(execs.Exec.kill)
    detach = blocking(execs.Exec.detach)
    resize = blocking(execs.Exec.resize)


class Session(Mirror[session.Session]):
    """A shell that keeps its state between scripts; ``with`` closes it at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """Its ID: that of its exec."""
        return self._core.id

    @property
    def closed(self) -> bool:
        """Whether it is known that the shell has ended. Nothing can be run in it any more."""
        return self._core.closed

    run = blocking(session.Session.run)
    close = blocking(session.Session.close)


def _forked(core: _CreatingMany | Forking) -> CreatingMany:
    return CreatingMany(core)


class Sandbox(Mirror[sandbox.Sandbox]):
    """A sandbox; ``with`` stops it at the end."""

    def __enter__(self) -> Self:
        self._keeper = Keeper(self._core)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._keeper.stop(failing=kind is not None))

    @property
    def id(self) -> str:
        """Its ID."""
        return self._core.id

    @property
    def backend(self) -> str:
        """container, microvm or vm. Of an attached sandbox known only after ``info()``."""
        return self._core.backend

    @property
    def labels(self) -> dict[str, str]:
        """Its labels. Of an attached sandbox known only after ``info()``."""
        return self._core.labels

    @property
    def files(self) -> Files:
        """Files inside it."""
        return Files(self._core.files)

    info = blocking(sandbox.Sandbox.info)
    story = blocking(sandbox.Sandbox.story)
    usage = blocking(sandbox.Sandbox.usage)
    execs = blocking(sandbox.Sandbox.execs)
    logs = iterating(sandbox.Sandbox.logs)
    exec = blocking(sandbox.Sandbox.exec)
    run_shell = blocking(sandbox.Sandbox.run_shell)
    spawn = blocking_as(Exec, sandbox.Sandbox.spawn)
    read = blocking(sandbox.Sandbox.read)
    write = blocking(sandbox.Sandbox.write)
    stop = blocking(sandbox.Sandbox.stop)
    kill = blocking(sandbox.Sandbox.kill)
    remove = blocking(sandbox.Sandbox.remove)
    attach = plain(Exec, sandbox.Sandbox.attach)
    events = blocking(sandbox.Sandbox.events)
    network = blocking(sandbox.Sandbox.network)
    open_session = blocking_as(Session, sandbox.Sandbox.open_session)
    verify_protected = blocking(sandbox.Sandbox.verify_protected)
    expose = blocking(sandbox.Sandbox.expose)
    unexpose = blocking(sandbox.Sandbox.unexpose)
    ports = blocking(sandbox.Sandbox.ports)
    endpoints = blocking(sandbox.Sandbox.endpoints)
    close_endpoint = blocking(sandbox.Sandbox.close_endpoint)
    set_network = blocking(sandbox.Sandbox.set_network)
    snapshot = blocking(sandbox.Sandbox.snapshot)
    fork = plain(_forked, sandbox.Sandbox.fork)
    pause = blocking(sandbox.Sandbox.pause)
    resume = blocking(sandbox.Sandbox.resume)
    pack_diff = blocking(sandbox.Sandbox.pack_diff)


class CreatingMany(Mirror[_CreatingMany | Forking]):
    """Iterate it for each Created as it becomes ready, or call ``all()`` for a list in the order asked."""

    def __iter__(self) -> Iterator[Created[Sandbox]]:
        for made in iterate(aiter(self._core)):
            yield _created(made)

    def all(self) -> list[Created[Sandbox]]:
        """Every Created, in the order asked."""
        return [_created(made) for made in run(self._core.all())]


def _created(made: Created[sandbox.Sandbox]) -> Created[Sandbox]:
    return Created(made.index, made.key, Sandbox(made.sandbox) if made.sandbox is not None else None, made.error)
