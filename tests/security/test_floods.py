"""A sandbox that floods everything at once: its neighbour goes on, and the flood ends at its own limits."""

from __future__ import annotations

import pytest
from bench.floods import FLOOD

import dsec

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

LIMITS = {"memory_mib": 128, "disk_mib": 64, "pids": 100, "cpu": 1}


async def test_everything_at_once(client: dsec.DSecClient) -> None:
    """Output, log lines, disk, files, processes, memory, connections: execs, files, output of another stay right."""
    # Limits of its own for each; pipes, rings and logs of the node are bounded per exec.
    async with client.sandbox(IMAGE, **LIMITS) as loud, client.sandbox(IMAGE, **LIMITS) as quiet:  # type: ignore[arg-type]
        flood = await loud.spawn("python3", "-c", FLOOD)
        async for event in flood.events():
            if isinstance(event, dsec.Stdout):
                break
        for number in range(20):
            said = await quiet.run_shell(f"echo {number}; echo error >&2; exit 7")
            assert (said.stdout, said.stderr, said.exit_code) == (f"{number}\n", "error\n", 7)
        await quiet.write("/tmp/file", b"x" * 1_000_000)
        assert await quiet.read("/tmp/file") == b"x" * 1_000_000
        whole = await quiet.exec("head", "-c", "20M", "/dev/zero", max_output_bytes=1000, check=True)
        assert whole.stdout_kept.total_bytes == 20 << 20
        async with client.sandbox(IMAGE) as made:
            assert (await made.exec("true")).exit_code == 0
        usage = await loud.usage()
        assert usage.pids <= 100 and usage.memory_mib <= 129 and usage.disk_mib <= 66
        assert (await flood.info()).ended is None
        assert (await quiet.usage()).oom_kills == 0
        stopped = await loud.stop()
        assert stopped.proof_of_death.processes == 0
