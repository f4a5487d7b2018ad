"""DSecClient for plain Python."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dsec.client import artefacts, client, jobs, layers, snapshots
from dsec.errors import DSecError
from dsec.sync.mirror import Mirror, blocking, blocking_as, iterating, plain, refused
from dsec.sync.portal import run
from dsec.sync.sandbox import CreatingMany, Sandbox

__all__ = ["CreatingMany", "DSecClient", "Images", "Job", "Layers", "Snapshots", "Tokens"]


class Images(Mirror[artefacts.Images]):
    """``client.images``. ``on_progress`` is called in the background thread."""

    list = blocking(artefacts.Images.list)
    get = blocking(artefacts.Images.get)
    remove = blocking(artefacts.Images.remove)
    import_ = blocking(artefacts.Images.import_)
    build = blocking(artefacts.Images.build)
    collapse = blocking(artefacts.Images.collapse)
    push = blocking(artefacts.Images.push)
    fetch = blocking(artefacts.Images.fetch)
    ensure = iterating(artefacts.Images.ensure)


class Layers(Mirror[layers.Layers]):
    """``client.layers``. ``on_progress`` is called in the background thread."""

    list = blocking(layers.Layers.list)
    get = blocking(layers.Layers.get)
    remove = blocking(layers.Layers.remove)
    build = blocking(layers.Layers.build)
    push = blocking(layers.Layers.push)
    pull = blocking(layers.Layers.pull)
    verify = blocking(layers.Layers.verify)
    evict = blocking(layers.Layers.evict)
    gc = blocking(layers.Layers.gc)
    check = blocking(layers.Layers.check)
    diff = blocking(layers.Layers.diff)
    stores = blocking(layers.Layers.stores)
    stored = blocking(layers.Layers.stored)


class Snapshots(Mirror[snapshots.Snapshots]):
    """``client.snapshots``."""

    list = blocking(snapshots.Snapshots.list)
    get = blocking(snapshots.Snapshots.get)
    remove = blocking(snapshots.Snapshots.remove)


class Tokens(Mirror[artefacts.Tokens]):
    """``client.tokens``."""

    create = blocking(artefacts.Tokens.create)
    list = blocking(artefacts.Tokens.list)
    revoke = blocking(artefacts.Tokens.revoke)


class Job(Mirror[jobs.Job]):
    """A job; ``with`` takes it, and ends it with all its sandboxes. Signs of life come from the background thread."""

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))

    def open(self) -> Self:
        """Take it, from its former holder too. Raises Denied for another principal's, InvalidArgument, NodeError."""
        run(self._core.open())
        return self

    @property
    def name(self) -> str:
        """Its name."""
        return self._core.name

    @property
    def fence(self) -> int:
        """The fencing number of this holder."""
        return self._core.fence

    @property
    def lost_by(self) -> DSecError | None:
        """Why no more signs of life are given, Fenced mostly; None while they are."""
        return self._core.lost_by

    stop = blocking(jobs.Job.stop)
    detach = blocking(jobs.Job.detach)
    info = blocking(jobs.Job.info)
    sandbox = blocking_as(Sandbox, jobs.Job.sandbox)
    sandboxes = plain(CreatingMany, jobs.Job.sandboxes)
    attach = plain(Sandbox, jobs.Job.attach)
    get = blocking_as(Sandbox, jobs.Job.get)
    find = iterating(jobs.Job.find)
    stop_all = blocking(jobs.Job.stop_all)


class DSecClient(Mirror[client.DSecClient]):
    """Opens sandboxes. Makes no connection before it is used; see ``dsec.DSecClient``."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, project: str | None = None,
        max_creates_in_flight: int = 64, trust: str | None = None,
    ) -> None:  # fmt: skip
        core = client.DSecClient(
            url, token, project=project, max_creates_in_flight=max_creates_in_flight, trust=trust
        )
        super().__init__(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> Self:
        """Connect now instead of at first use. Raises NodeError or Denied."""
        run(self._core.open())
        return self

    @property
    def images(self) -> Images:
        """The node's images."""
        return Images(self._core.images)

    @property
    def layers(self) -> Layers:
        """The node's layers."""
        return Layers(self._core.layers)

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots that the node keeps."""
        return Snapshots(self._core.snapshots)

    @property
    def tokens(self) -> Tokens:
        """The caller's tokens."""
        return Tokens(self._core.tokens)

    close = blocking(client.DSecClient.close)
    sandbox = blocking_as(Sandbox, client.DSecClient.sandbox)
    sandboxes = plain(CreatingMany, client.DSecClient.sandboxes)
    attach = plain(Sandbox, client.DSecClient.attach)
    get = blocking_as(Sandbox, client.DSecClient.get)
    find = iterating(client.DSecClient.find)
    stop_all = blocking(client.DSecClient.stop_all)
    status = blocking(client.DSecClient.status)
    usage = blocking(client.DSecClient.usage)
    version = blocking(client.DSecClient.version)
    run_container = blocking_as(Sandbox, client.DSecClient.run_container)
    run_microvm = blocking(client.DSecClient.run_microvm)
    run_vm = blocking(client.DSecClient.run_vm)
    job = plain(Job, client.DSecClient.job)
    jobs = blocking(client.DSecClient.jobs)
    stop_job = blocking(client.DSecClient.stop_job)
    call = blocking(client.DSecClient.call)
    call_many = refused(client.DSecClient.call_many)
