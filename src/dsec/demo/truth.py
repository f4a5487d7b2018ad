"""Find out, once, which tests tell release N from N+1."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dsec.demo.boxes import Boxes
from dsec.demo.grade import apply, grader_environment, run_suite
from dsec.demo.pairs import SDISTS, TOOLKIT, Task
from dsec.demo.patch import Patch, difference, read_directory
from dsec.demo.policies import Case
from dsec.demo.prepare import Prepared
from dsec.demo.verdict import PYTEST_OPTIONS, Truth, passed_tests, truth_of
from dsec.errors import NodeError

__all__ = ["make_cases"]


async def make_cases(
    boxes: Boxes,
    image: str,
    tasks: Sequence[Task],
    prepared: Prepared,
    cache: Path,
    say: Callable[[str], None],
) -> list[Case]:
    """The tasks with their golden patches and truth; what is not in the cache is measured, two suites at a time."""
    at_once = asyncio.Semaphore(2)

    async def one(task: Task) -> Case:
        async with at_once:
            return await _case(boxes, image, task, prepared, cache, say)

    try:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(one(task)) for task in tasks]
    except BaseExceptionGroup as failed:
        # The others were cancelled and have stopped their boxes; the caller gets the error itself.
        raise failed.exceptions[0] from None
    return [case.result() for case in made]


async def _case(
    boxes: Boxes, image: str, task: Task, prepared: Prepared, cache: Path, say: Callable[[str], None]
) -> Case:
    original = read_directory(prepared.repositories[(task.project, task.broken)] / task.source)
    after = read_directory(prepared.repositories[(task.project, task.golden)] / task.source)
    golden = difference(original, after)
    grader_layer = prepared.grader_layers[task.name]
    digest = hashlib.sha256(repr((task, image, sorted(SDISTS.items()), TOOLKIT, PYTEST_OPTIONS)).encode())
    held = cache / "truth" / f"{task.name}-{digest.hexdigest()[:16]}.json"
    truth = _read(held)
    if truth is None:
        say(f"running the tests of {task.title} on both releases")
        broken = await _passed(boxes, image, task, prepared, None)
        fixed = await _passed(boxes, image, task, prepared, golden)
        truth = truth_of(broken, fixed, task.unstable)
        if not truth.fail_to_pass:
            raise NodeError(f"no test tells {task.title} apart", phase="prepare")
        _write(held, truth)
    return Case(
        task=task,
        original=dict(original),
        golden=golden,
        truth=truth,
        agent_layer=prepared.agent_layers[task.name],
        grader_layer=grader_layer,
    )


async def _passed(boxes: Boxes, image: str, task: Task, prepared: Prepared, patch: Patch | None) -> frozenset[str]:
    environment = grader_environment(image, task, prepared.grader_layers[task.name], prepared.toolkit)
    box = await boxes.create(environment)
    try:
        if patch is not None:
            await apply(box, task, patch)
        outcome = await run_suite(box, task)
    finally:
        await box.stop()
    output = outcome.stdout.decode(errors="replace")
    passed = passed_tests(output)
    if passed is None:
        raise NodeError(
            f"the suite of {task.title} ended with {outcome.exit_code} and without a summary: {output[-400:]}",
            phase="prepare",
        )
    return passed


def _read(path: Path) -> Truth | None:
    try:
        raw = json.loads(path.read_text())
        return Truth(frozenset(raw["fail_to_pass"]), frozenset(raw["pass_to_pass"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, truth: Truth) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".new")
    lists = {"fail_to_pass": sorted(truth.fail_to_pass), "pass_to_pass": sorted(truth.pass_to_pass)}
    partial.write_text(json.dumps(lists, indent=1))
    partial.replace(path)
