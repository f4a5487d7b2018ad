"""What is measured: dsec through its SDK, Docker through its API, with the same three operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import dsec
from dsec.demo.docker_api import DockerApi

__all__ = ["DockerTarget", "DsecTarget", "Target"]

H = TypeVar("H")
LABEL = "dsec-bench"


class Target(Protocol, Generic[H]):
    """A platform that makes sandboxes. ``H`` is its handle on one."""

    @property
    def name(self) -> str:
        """As it is called in tables."""

    async def create(self) -> H:
        """A running sandbox."""

    async def true(self, handle: H) -> None:
        """Run ``true`` and wait for its exit code, 0."""

    async def stop(self, handle: H) -> None:
        """Stop and remove it, confirmed."""

    async def held(self) -> int:
        """For how many sandboxes the platform holds kernel objects: of the live, and made in advance."""

    async def clean(self) -> int:
        """Stop whatever the benchmark left; how many that were."""


@dataclass
class DsecTarget:
    """dsec."""

    client: dsec.DSecClient
    args: dsec.SandboxArgs

    @classmethod
    def of(cls, client: dsec.DSecClient, image: str) -> DsecTarget:
        """Default limits, but requests so small that hundreds are admitted: what is measured is not the queue."""
        requests = {"cpu": (0.001, 2), "memory_mib": (4, 1024), "disk_mib": (1, 10240), "pids": (4, 4096)}
        args = dsec.SandboxArgs(image, labels={LABEL: "1"}, lifetime_s=1800)
        return cls(client, args.replace(**requests))

    @property
    def name(self) -> str:
        """dsec."""
        return "dsec"

    async def create(self) -> dsec.Sandbox:
        """As ``Target.create``."""
        return await self.client.sandbox(self.args)

    async def true(self, handle: dsec.Sandbox) -> None:
        """As ``Target.true``."""
        result = await handle.exec("true")
        if not result.ok:
            raise RuntimeError(f"`true` failed: {result}")

    async def stop(self, handle: dsec.Sandbox) -> None:
        """As ``Target.stop``."""
        await handle.stop()

    async def held(self) -> int:
        """As ``Target.held``."""
        stats = (await self.client.status()).stats
        return int(stats["slots_ready"]) + int(stats["slots_used"])

    async def clean(self) -> int:
        """As ``Target.clean``."""
        report = await self.client.stop_all(labels={LABEL: "1"})
        return len(report.stopped) + len(report.failed)


@dataclass
class DockerTarget:
    """Docker: create and start, exec create and start, forced removal; no network."""

    api: DockerApi
    image: str

    @property
    def name(self) -> str:
        """docker."""
        return "docker"

    async def create(self) -> str:
        """As ``Target.create``."""
        host = {"Memory": 1 << 30, "NanoCpus": 2 * 10**9, "PidsLimit": 4096}
        return await self.api.create(self.image, host, Labels={LABEL: "1"})

    async def true(self, handle: str) -> None:
        """As ``Target.true``."""
        code, _, error = await self.api.execute(handle, ["true"])
        if code != 0:
            raise RuntimeError(f"`true` ended with {code}: {error!r}")

    async def stop(self, handle: str) -> None:
        """As ``Target.stop``."""
        await self.api.remove(handle)

    async def held(self) -> int:
        """As ``Target.held``."""
        return len(await self.api.labelled(f"{LABEL}=1"))

    async def clean(self) -> int:
        """As ``Target.clean``."""
        found = await self.api.labelled(f"{LABEL}=1")
        for container in found:
            await self.api.remove(container)
        return len(found)
