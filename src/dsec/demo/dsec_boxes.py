"""The job's boxes on dsec's public SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import dsec
from dsec.demo.boxes import BoxEnd, Environment, LayerSource, Outcome

__all__ = ["DsecBoxes", "export_root"]

_LIFETIME_S = 1800.0
_OUTPUT_BYTES = 64 << 20
_DEADLINE_S = 300.0


@dataclass
class DsecBox:
    """A sandbox."""

    sandbox: dsec.Sandbox

    @property
    def id(self) -> str:
        """The sandbox's ID."""
        return self.sandbox.id

    async def run(self, script: str, *, timeout_s: float, stdin: bytes | None = None) -> Outcome:
        """As ``Box.run``."""
        result = await self.sandbox.run_shell(
            script, timeout_s=timeout_s, grace_s=0.5, stdin=stdin, max_output_bytes=_OUTPUT_BYTES
        )
        return Outcome(
            exit_code=result.exit_code,
            timed_out=result.ended is dsec.Ended.TIMEOUT,
            oom_kills=result.oom_kills,
            stdout=result.stdout_bytes,
            stderr=result.stderr_bytes,
        )

    async def stop(self) -> BoxEnd:
        """As ``Box.stop``."""
        stopped = await self.sandbox.stop()
        return BoxEnd(
            processes=stopped.proof_of_death.processes,
            cpu_s=stopped.usage.cpu_s,
            memory_peak_mib=stopped.usage.memory_peak_mib,
        )


@dataclass
class DsecBoxes:
    """Sandboxes of one job, marked by a label."""

    client: dsec.DSecClient
    run_id: str

    @property
    def platform(self) -> str:
        """dsec."""
        return "dsec"

    async def build(self, layers: Sequence[LayerSource]) -> None:
        """Build the layers whose references the node does not know; equal references hold equal content."""
        known = {layer.reference for layer in await self.client.layers.list()}
        for layer in layers:
            if layer.reference not in known:
                await self.client.layers.build(layer.directory, layer.reference, at=layer.at)

    async def create(self, environment: Environment) -> DsecBox:
        """A running sandbox."""
        args = dsec.SandboxArgs(
            environment.image,
            workspace=environment.workspace,
            toolkits=environment.toolkits,
            env=environment.env,
            memory_mib=environment.memory_mib,
            lifetime_s=_LIFETIME_S,
            labels={"dsec-demo": self.run_id},
        )
        return DsecBox(await self.client.sandbox(args, deadline_s=_DEADLINE_S))

    async def left(self) -> int:
        """Sandboxes of this job that still run."""
        found = self.client.find(labels={"dsec-demo": self.run_id}, state="running")
        return len([info async for info in found])


async def export_root(client: dsec.DSecClient, image: str) -> AsyncIterator[bytes]:
    """The root filesystem of an image as a tar archive, read out of a sandbox."""
    async with client.sandbox(image) as sandbox:
        script = "exec tar -C / --one-file-system --exclude=./proc --exclude=./sys --exclude=./dev -cf - ."
        # What the reader has not taken must not be dropped: an archive with a gap is none.
        running = await sandbox.spawn(shell=script, backpressure=True)
        async for event in running.events():
            if isinstance(event, dsec.Stdout):
                yield event.data
