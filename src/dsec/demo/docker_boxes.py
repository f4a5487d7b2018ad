"""The same job on Docker: one image for each set of layers, a container for each box."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dsec.demo.boxes import BoxEnd, Environment, LayerSource, Outcome
from dsec.demo.docker_api import DockerApi
from dsec.errors import InvalidArgument

__all__ = ["DockerBoxes"]

_KILLED = 137
_REPOSITORY = "dsec-demo"


@dataclass
class DockerBox:
    """A container that waits, entered by ``docker exec``."""

    api: DockerApi
    id: str

    async def run(self, script: str, *, timeout_s: float, stdin: bytes | None = None) -> Outcome:
        """As ``Box.run``. Docker has no time limit for an exec, so ``timeout`` in the container sets it."""
        argv = ["timeout", "-s", "KILL", str(timeout_s), "sh", "-c", script]
        if stdin is not None:
            await self.api.put_archive(self.id, _one_file("dsec-stdin", stdin))
            argv[5:] = ["-c", 'exec sh -c "$0" </dsec-stdin', script]
        started = time.monotonic()
        code, stdout, stderr = await self.api.execute(self.id, argv)
        took = time.monotonic() - started
        killed = code == _KILLED
        timed_out = killed and took >= timeout_s
        return Outcome(
            exit_code=None if killed else code,
            timed_out=timed_out,
            oom_kills=int(killed and not timed_out),
            stdout=stdout,
            stderr=stderr,
        )

    async def stop(self) -> BoxEnd:
        """Remove the container; Docker answers when its processes are gone."""
        cpu_s, peak_mib = await self.api.usage(self.id)
        await self.api.remove(self.id)
        return BoxEnd(processes=0, cpu_s=cpu_s, memory_peak_mib=peak_mib)


@dataclass
class DockerBoxes:
    """Containers of one job. ``root`` gives the root filesystem of an image as a tar archive."""

    api: DockerApi
    run_id: str
    root: Callable[[str], AsyncIterable[bytes]]
    _layers: dict[str, LayerSource] = field(default_factory=dict)
    _images: set[str] = field(default_factory=set)

    @property
    def platform(self) -> str:
        """Docker."""
        return "docker"

    async def build(self, layers: Sequence[LayerSource]) -> None:
        """Remember the layers: an image is built of them for each environment, by ``prepare``."""
        self._layers |= {layer.reference: layer for layer in layers}

    async def prepare(self, environments: Sequence[Environment]) -> None:
        """Build the images of all environments, so that the job itself builds none."""
        for environment in environments:
            await self._image(environment)

    async def create(self, environment: Environment) -> DockerBox:
        """A running container."""
        host = {"Memory": environment.memory_mib << 20, "MemorySwap": environment.memory_mib << 20, "PidsLimit": 4096}
        container = await self.api.create(
            await self._image(environment),
            {**host, "NanoCpus": 2 * 10**9},
            Env=[f"{name}={value}" for name, value in environment.env.items()],
            Labels={"dsec-demo": self.run_id},
        )
        return DockerBox(self.api, container)

    async def left(self) -> int:
        """Containers of this job that are still there."""
        return len(await self.api.labelled(f"dsec-demo={self.run_id}"))

    async def _image(self, environment: Environment) -> str:
        base = f"{_REPOSITORY}:base-{_tag(environment.image)}"
        references = [*([environment.workspace] if environment.workspace else []), *environment.toolkits]
        name = f"{_REPOSITORY}:{_tag('-'.join(references))}" if references else base
        if name not in self._images:
            if not await self.api.has_image(base):
                await self.api.import_image(_REPOSITORY, base.partition(":")[2], self.root(environment.image))
            if references and not await self.api.has_image(name):
                await self.api.build_image(name, self.context(base, references))
        self._images.add(name)
        return name

    def context(self, base: str, references: Sequence[str]) -> bytes:
        """A build context that lays layers over a base image; raises InvalidArgument for one that was not built."""
        unknown = [reference for reference in references if reference not in self._layers]
        if unknown:
            raise InvalidArgument(f"no layer {unknown[0]!r} was built")
        sources = {f"layer{index}": self._layers[reference] for index, reference in enumerate(references)}
        lines = [f"FROM {base}", *(f"COPY {name} {source.at}/" for name, source in sources.items())]
        return _archive({"Dockerfile": "\n".join(lines).encode()}, sources)


def _tag(text: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
    return kept[-100:].lstrip(".-")


def _one_file(name: str, content: bytes) -> bytes:
    return _archive({name: content}, {})


def _archive(files: Mapping[str, bytes], directories: Mapping[str, LayerSource]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
        for name, source in directories.items():
            tar.add(source.directory, arcname=name)
    return buffer.getvalue()
