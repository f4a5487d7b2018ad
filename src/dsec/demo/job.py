"""Run the samples: an agent's sandbox each, then, once that is dead, a fresh one for its grade."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from dsec.demo.boxes import Box, Boxes, Environment
from dsec.demo.grade import agent_environment, extract, grade, grader_environment
from dsec.demo.patch import Patch
from dsec.demo.policies import POLICIES, Case, Policy
from dsec.demo.report import JobResult, Sample, Timing
from dsec.demo.verdict import Judgement, Verdict
from dsec.errors import DSecError

__all__ = ["Stage", "plan", "run_job"]

Stage = Callable[[int, str], None]
"""Told (sample's index, "agent" | "grading" | a verdict) as samples move on."""


_TRUE_S = 60.0


def plan(cases: Sequence[Case], samples: int) -> list[tuple[Case, Policy]]:
    """The samples in the order of their start: those that only wait come first, and wait beside the others."""
    chosen = [(case, POLICIES[index % len(POLICIES)]) for index in range(samples) for case in cases]
    return sorted(chosen, key=lambda pair: pair[1].name != "hang")


async def run_job(
    boxes: Boxes,
    image: str,
    toolkit: str,
    planned: Sequence[tuple[Case, Policy]],
    *,
    parallel: int,
    on_stage: Stage,
) -> JobResult:
    """Run all samples, ``parallel`` at once. A fault of the platform masks its sample; nothing else ends the job."""
    at_once = asyncio.Semaphore(parallel)
    started = time.monotonic()

    async def one(index: int, case: Case, policy: Policy) -> Sample:
        async with at_once:
            on_stage(index, "agent")
            sample = await _sample(boxes, image, toolkit, case, policy, lambda: on_stage(index, "grading"))
            on_stage(index, sample.observed.value)
            return sample

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(index, *pair)) for index, pair in enumerate(planned)]
    wall_s = time.monotonic() - started
    return JobResult(
        platform=boxes.platform,
        samples=tuple(task.result() for task in running),
        wall_s=wall_s,
        sandboxes_left=await boxes.left(),
        parallel=parallel,
    )


async def _sample(
    boxes: Boxes, image: str, toolkit: str, case: Case, policy: Policy, on_grading: Callable[[], None]
) -> Sample:
    started = time.monotonic()
    timings: list[Timing] = []
    patch = Patch(written={}, removed=frozenset())
    try:
        async with _measured(boxes, agent_environment(image, case, toolkit), timings) as agent:
            patch = await _work(agent, case, policy)
        # Graded only once the agent's box is confirmed dead: nothing that it left can see, or touch, the grading.
        on_grading()
        environment = grader_environment(image, case.task, case.grader_layer, toolkit)
        async with _measured(boxes, environment, timings) as grader:
            judgement = await grade(grader, case, patch)
    except DSecError as error:
        judgement = Judgement(Verdict.MASKED, f"{type(error).__name__}: {error}")
    return Sample(
        task=case.task.name,
        policy=policy.name,
        expected=policy.expected,
        observed=judgement.verdict,
        reason=judgement.reason,
        patch=patch.summary(),
        seconds=time.monotonic() - started,
        boxes=tuple(timings),
    )


async def _work(agent: Box, case: Case, policy: Policy) -> Patch:
    """What the agent achieved. An agent that wrecks its own sandbox achieved nothing; only that is forgiven."""
    try:
        await policy.act(agent, case)
        return await extract(agent, case)
    except DSecError as error:
        if error.fault not in ("command", "sandbox"):
            raise
        return Patch(written={}, removed=frozenset())


@contextlib.asynccontextmanager
async def _measured(boxes: Boxes, environment: Environment, timings: list[Timing]) -> AsyncIterator[Box]:
    """A box, stopped on the way out. Its create and a first exec of ``true`` are timed as the client sees them."""
    asked = time.monotonic()
    box = await boxes.create(environment)
    created = answered = time.monotonic()
    try:
        await box.run("true", timeout_s=_TRUE_S)
        answered = time.monotonic()
        yield box
    finally:
        end = await box.stop()
        timings.append(
            Timing(
                created_at=created,
                create_s=created - asked,
                exec_s=answered - created,
                ended_at=time.monotonic(),
                cpu_s=end.cpu_s,
                memory_peak_mib=end.memory_peak_mib,
                processes=end.processes,
            )
        )
