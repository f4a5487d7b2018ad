"""Joined imports: one job for all who wait, whoever comes and goes."""

from __future__ import annotations

import asyncio

import pytest

from dsec.errors import ImageNotFound
from dsec.images.catalogue import Image, ImageConfig
from dsec.images.jobs import Jobs
from dsec.images.progress import Progress, Reporter

pytestmark = pytest.mark.anyio
IMAGE = Image("r:1", "sha256:1", ImageConfig(), ("l",), 7, 0.0)


class Work:
    """A job that waits to be let go."""

    def __init__(self) -> None:
        self.starts = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.report: Reporter | None = None

    async def __call__(self, report: Reporter) -> Image:
        self.starts += 1
        self.report = report
        report(Progress("r:1", "download", 1))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return IMAGE


async def settle() -> None:
    """Let every ready task run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_wait_share_one_job() -> None:
    """Two callers, one start; a late one hears the latest moment at once; afterwards a new call starts anew."""
    jobs, work = Jobs(), Work()
    first: list[Progress] = []
    late: list[Progress] = []
    one = asyncio.create_task(jobs.join("k", work, first.append))
    await settle()
    two = asyncio.create_task(jobs.join("k", work, late.append))
    await settle()
    assert [each.bytes_done for each in late] == [1]
    work.go.set()
    assert await one == await two == IMAGE
    assert work.starts == 1
    assert [each.phase for each in first] == ["download", "done"]
    assert await jobs.join("k", work, None) == IMAGE
    assert work.starts == 2


async def test_a_caller_that_leaves_does_not_end_the_job() -> None:
    """The only caller is cancelled; the next one joins the job that still runs, and the first hears no more."""
    jobs, work = Jobs(), Work()
    heard: list[Progress] = []
    gone = asyncio.create_task(jobs.join("k", work, heard.append))
    await settle()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    next_one = asyncio.create_task(jobs.join("k", work, None))
    await settle()
    work.go.set()
    assert await next_one == IMAGE
    assert work.starts == 1
    assert len(heard) == 1


async def test_an_error_reaches_everyone_and_is_not_kept() -> None:
    """All waiting get the error; the next call tries again."""
    jobs, work = Jobs(), Work()
    work.error = ImageNotFound("no")
    waiting = [asyncio.create_task(jobs.join("k", work, None)) for _ in range(3)]
    await settle()
    work.go.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [ImageNotFound] * 3
    work.error = None
    assert await jobs.join("k", work, None) == IMAGE


async def test_closing_cancels_what_runs() -> None:
    """After aclose no job is left, and its callers know."""
    jobs, work = Jobs(), Work()
    waiting = asyncio.create_task(jobs.join("k", work, None))
    await settle()
    await jobs.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_job_knows_how_long_somebody_waits() -> None:
    """The last of the deadlines counts, one without makes it endless, and who has left counts no more."""
    jobs, work = Jobs(), Work()
    early = asyncio.create_task(jobs.join("k", work, None, deadline=10.0))
    late = asyncio.create_task(jobs.join("k", work, None, deadline=20.0))
    await settle()
    assert work.report is not None and work.report.until == 20.0
    late.cancel()
    await settle()
    assert work.report.until == 10.0
    endless = asyncio.create_task(jobs.join("k", work, None))
    await settle()
    assert work.report.until == float("inf")
    work.go.set()
    assert await early == await endless == IMAGE
