"""The node's images and layers, in one object for the edge."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

from dsec.api.packing import Provenance
from dsec.errors import ImageNotFound, InvalidArgument
from dsec.images.archives import archive_name, unpack_layout
from dsec.images.build import DEFAULT_IMAGE, DefaultImage
from dsec.images.catalogue import Catalogue, Image, LayerEnvironment, LayerTag
from dsec.images.collapse import Collapser
from dsec.images.config import ImagesConfig
from dsec.images.copies import Copies
from dsec.images.disk import full_disk_typed
from dsec.images.holds import Holds
from dsec.images.importer import Importer
from dsec.images.jobs import Jobs, Work, reported
from dsec.images.layers import LayerBuilder, spool
from dsec.images.node_layers import NodeLayers
from dsec.images.oci import read_layout
from dsec.images.packing import Packer, Packing
from dsec.images.progress import OnProgress, Reporter
from dsec.images.pulls import Pulls
from dsec.images.references import (
    ImageReference,
    LayerKind,
    parse_image,
    parse_image_name,
    parse_layer,
    parse_layer_choice,
    parse_source,
)
from dsec.images.store import LayerStore, private_directory, sweep_stale
from dsec.images.threads import in_thread
from dsec.images.tools import Tools
from dsec.images.workshop import Workshop
from dsec.layering.packing.report import Report

__all__ = ["Images", "Pull"]

Pull = Literal["missing", "always", "never"]
_STREAM_PREFIX = "stream-"


def _nobody(_: str) -> bool:
    return False


class Images:
    """Imports, builds, finds and removes images and layers of one node.

    Made and used on one event loop. ``in_use(digest)`` says whether a sandbox has the layer; such a layer's files are
    never deleted. Making the object deletes what a crash left behind, but the pulls, which ``resume`` goes on with,
    and layers without a record, which it deletes: by then it must be known what is in use. ``aclose`` ends what is
    in flight.
    """

    def __init__(self, config: ImagesConfig, tools: Tools, *, in_use: Callable[[str], bool] = _nobody) -> None:
        config.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config.scratch_dir.chmod(0o700)
        sweep_stale(config.scratch_dir, "")
        self._pulls = Pulls(config.scratch_dir.with_name("pulls"))
        shared = config.shared_dir
        self._config = config
        self._in_use = in_use
        self._holds = Holds()
        self._store = LayerStore(config.layers_dir, shared / "layers" if shared else None)
        self._catalogue = Catalogue(config.catalogue)
        if shared is not None:
            self._catalogue.adopt(shared / "catalogue.db")
        workshop = Workshop(config, tools, self._store, self._catalogue, self._holds)
        self.layers = NodeLayers(config.layers_dir, self._store, self._catalogue, self._holds)
        """Layers as the node's stores deal with them."""
        self._collapser = Collapser(workshop)
        self._importer = Importer(workshop, self._pulls, self._collapser.soon)
        self._layer_builder = LayerBuilder(workshop)
        self._packer = Packer(workshop)
        self._default = DefaultImage(config, tools, self._store, self._catalogue, self._holds)
        self._jobs = Jobs()
        self.copies = Copies(config.catalogue)
        """Which stores have the layers, and when they were used last."""
        self.pruned = 0
        """How often layers were deleted."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def resume(self) -> set[str]:
        """Go on with what a process before this one had begun; returns the IDs of the runs of its pulls' tools.

        Layers are deleted that a crash left without a record.
        """
        self._delete(self._bury_orphans())
        unfinished = self._pulls.unfinished()
        for each in unfinished:
            self._jobs.start(*self._pull_job(parse_image(each.source), each.name))
        for image in self._catalogue.images():
            self._collapser.soon(image.reference)
        return {each.id for each in unfinished}

    def leave(self) -> None:
        """This process ends and another goes on: ``aclose`` then keeps what was pulled so far."""
        self._pulls.leave()

    async def aclose(self) -> None:
        """Cancel imports and builds in flight, wait until their traces are gone, close the catalogue."""
        await self._jobs.aclose()
        await self._collapser.aclose()
        self.copies.close()
        self._catalogue.close()

    # Images

    async def resolve(
        self,
        reference: str,
        *,
        pull: Pull = "missing",
        progress: OnProgress | None = None,
        deadline: float = math.inf,
    ) -> Image:
        """The image that a user's name means, pulled as ``pull`` says.

        Callers that want the same image at the same time share one pull; a caller that is cancelled leaves it
        running for the next. ``deadline``, by the event loop's time, is when the caller gives up: a registry that
        asks to be left alone for longer than the last of them is an error at once. Raises InvalidArgument
        (malformed), ImageNotFound, RegistryRateLimited (``retry_after_s``), RegistryDenied, RegistryUnreachable,
        ImageCorrupt, ImageError, CapacityError (disk full), DeadlineExceeded, NodeError.
        """
        parsed = parse_image_name(reference)
        name = str(parsed)
        if pull != "always" or parsed.is_reserved:
            try:
                return self._catalogue.image(name)
            except ImageNotFound:
                if parsed.is_reserved:
                    raise ImageNotFound(f"this node has no image {name}", remedy=_reserved_remedy(name)) from None
                if pull == "never":
                    raise
        self._refuse_id(parsed)
        return await self._pull(parsed, name, progress, deadline)

    def _refuse_id(self, source: ImageReference) -> None:
        """An image's own digest is its configuration's; registries know images by their manifests' digests."""
        known = self._catalogue.with_id(source.digest) if source.digest is not None else None
        if known is not None:
            raise ImageNotFound(
                f"{source} is {known} by its ID, and no registry knows images by their IDs",
                phase="image",
                remedy=f"Use {known}, or the digest that the registry shows for it",
            )

    async def _pull(
        self, source: ImageReference, name: str, progress: OnProgress | None, deadline: float = math.inf
    ) -> Image:
        return await self._jobs.join(*self._pull_job(source, name), progress, deadline=deadline)

    def _pull_job(self, source: ImageReference, name: str) -> tuple[str, Work]:
        return f"{name} from {source}", lambda report: self._importer.pull(source, name, report)

    async def import_(
        self, source: str, reference: str | None = None, *, progress: OnProgress | None = None
    ) -> Image:
        """Import ``docker://IMAGE``, or ``docker-archive:FILE[:NAME]`` or ``oci:DIR[:NAME]`` of this machine.

        ``reference`` is the name it gets; None takes the one that the source itself has. Errors as for ``resolve``.
        """
        parsed = parse_source(source)
        if parsed.transport == "docker":
            origin = parse_image_name(source.removeprefix("docker://"))
            if origin.is_reserved:
                raise _reserved(str(origin))
            return await self._pull(origin, str(_target(reference or parsed.location)), progress)
        return await self._import_file(parsed.transport, Path(parsed.location), parsed.selector, reference, progress)

    async def import_stream(
        self,
        transport: Literal["docker-archive", "oci"],
        archive: AsyncIterator[bytes],
        reference: str | None = None,
        *,
        selector: str | None = None,
        progress: OnProgress | None = None,
    ) -> Image:
        """Import what a client sends: the file that ``docker save`` wrote, or a tar of an OCI layout directory.

        The bytes are not trusted. When the stream raises, or the caller is cancelled, nothing of it stays.
        """
        if reference is not None:
            _target(reference)
        with full_disk_typed(), private_directory(self._config.scratch_dir, _STREAM_PREFIX) as scratch:
            path = scratch / "archive.tar"
            await spool(archive, path, self._config.max_image_bytes)
            if transport == "oci":
                path = await in_thread(lambda stop: unpack_layout(path, scratch / "layout", self._config, stop))
            return await self._import_file(transport, path, selector, reference, progress)

    async def _import_file(
        self,
        transport: Literal["docker-archive", "oci"],
        path: Path,
        selector: str | None,
        reference: str | None,
        progress: OnProgress | None,
    ) -> Image:
        if transport == "docker-archive":
            own = reference or selector or await in_thread(lambda _: archive_name(path))
        else:
            own = reference or (await in_thread(lambda _: read_layout(path, selector))).name
        if own is None:
            raise InvalidArgument(f"{path.name} does not name its image", remedy="Say which name it gets")
        name = str(_target(own))
        report = Reporter()
        if progress is not None:
            report.add(progress)
        run = self._importer.archive if transport == "docker-archive" else self._importer.layout
        return await reported(lambda report: run(path, selector, name, report), report)

    async def collapse(self, reference: str) -> Image:
        """Make one layer of each run of an image's small layers; done by itself after every import.

        Sandboxes made from then on use it; those that live keep what they have. Raises ImageNotFound, CapacityError,
        DeadlineExceeded, NodeError.
        """
        with full_disk_typed():
            return await self._collapser.collapse(self.get(reference).reference)

    async def settled(self) -> None:
        """Wait until nothing is collapsed in the background any more."""
        await self._collapser.settled()

    async def build_default(self, *, progress: OnProgress | None = None) -> Image:
        """Build ``dsec/debian:12`` anew; joined like a pull. Raises NodeError, CapacityError, DeadlineExceeded."""
        return await self._jobs.join(DEFAULT_IMAGE, self._default.build, progress)

    def list(self) -> Sequence[Image]:
        """All images, by name."""
        return self._catalogue.images()

    def get(self, reference: str) -> Image:
        """One image of this node; never pulls. Raises InvalidArgument or ImageNotFound."""
        return self._catalogue.image(str(parse_image_name(reference)))

    async def remove(self, reference: str) -> Sequence[str]:
        """Forget an image, and delete the layers that nothing else needs; returns their digests.

        Layers of other images, of tags, of sandboxes and of work in flight stay. Raises ImageNotFound.
        """
        self._catalogue.remove_image(str(parse_image_name(reference)))
        return await self.prune()

    # Layers

    async def build_layer(
        self,
        reference: str,
        archive: AsyncIterator[bytes],
        *,
        at: str = "/",
        owner: tuple[int, int] | None = (0, 0),
        environment: LayerEnvironment = LayerEnvironment(),
    ) -> LayerTag:
        """Make a layer of a client's directory (its tar, plain or gzip) laid over ``at``, and let the tag mean it.

        Modes and times are kept, everything belongs to ``owner`` (uid, gid), or with None to whom the archive says;
        parents are made. The archive is not trusted. ``environment`` is what the tag brings to sandboxes. Raises
        InvalidArgument, ImageCorrupt, CapacityError, NodeError.
        """
        return await self._layer_builder.build(parse_layer(reference), archive, at, owner, environment)

    async def pack_layer(self, asked: Packing) -> tuple[LayerTag, Provenance, Report]:
        """Make a layer of a snapshot of a sandbox, which the node's runtime keeps, and let the tag mean it.

        Nothing in it is trusted. Raises Unsupported (what no layer can hold), CapacityError, DeadlineExceeded,
        NodeError.
        """
        return await self._packer.pack(asked)

    def resolve_layer(self, reference: str, kind: LayerKind | None = None) -> str:
        """Digest of a layer by tag or ``@sha256:DIGEST``; a tag must be of the ``kind``. As ``layers.find``."""
        return self.layers.find(reference, kind).digest

    def list_layers(self) -> Sequence[LayerTag]:
        """All layers that users built, by tag."""
        return self._catalogue.tags()

    async def remove_layer(self, reference: str) -> Sequence[str]:
        """Forget a layer's tag and delete the layers that nothing needs; returns their digests.

        Raises InvalidArgument or NotFound.
        """
        self._catalogue.remove_tag(str(parse_layer_choice(reference)))
        return await self.prune()

    def layer_path(self, digest: str) -> Path:
        """Directory holding a layer's ``layer.json``, ``metadata`` and ``data``; raises NotFound."""
        return self._store.path(digest)

    @contextlib.contextmanager
    def holding(self, digests: Iterable[str]) -> Iterator[None]:
        """Keep layers from being deleted during the block.

        For the time between asking for an image and having recorded that a sandbox uses it: enter it before the next
        await.
        """
        with self._holds.session() as hold:
            for digest in digests:
                hold(digest)
            yield

    def garbage(self) -> Sequence[str]:
        """The layers that no image, tag, sandbox or work in flight needs: what ``prune`` deletes."""
        unreferenced = self._catalogue.unreferenced_layers()
        return [each for each in unreferenced if each not in self._holds and not self._in_use(each)]

    async def prune(self) -> Sequence[str]:
        """Delete the layers that nothing needs, and what fetches left long ago; returns the layers' digests.

        Also wanted after a sandbox ended whose image had been removed.
        """
        # No await between the question and the burial: nobody can begin to need a layer in between.
        gone = [each for each in self.garbage() if self._catalogue.remove_layer(each)]
        graves = [grave for each in gone if (grave := self._store.bury(each)) is not None]
        for each in gone:
            self.layers.absent.discard(each)
            self.copies.forget(each)
        self.pruned += bool(gone)
        await in_thread(lambda _: self._delete([*graves, *self.layers.abandoned()]))
        return gone

    def _bury_orphans(self) -> Sequence[Path]:
        known = self._catalogue.layer_digests()
        orphans = [each for each in self._store.digests() if each not in known and not self._in_use(each)]
        return [grave for each in orphans if (grave := self._store.bury(each)) is not None]

    @staticmethod
    def _delete(graves: Sequence[Path]) -> None:
        for grave in graves:
            shutil.rmtree(grave, ignore_errors=True)


def _target(text: str) -> ImageReference:
    parsed = parse_image_name(text)
    if parsed.is_reserved:
        raise _reserved(text)
    return parsed


def _reserved(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"{text!r}: names under dsec/ are made by dsec itself",
        remedy="Import it under another name",
        argument="image",
    )


def _reserved_remedy(name: str) -> str:
    return "Build it: dsec image build" if name == DEFAULT_IMAGE else f"The image that dsec builds is {DEFAULT_IMAGE}"
