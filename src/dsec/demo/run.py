"""The whole demo: prepare, run the job on dsec, and, if asked, on Docker beside it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import dsec
from dsec.demo.boxes import Boxes, Environment
from dsec.demo.docker_api import DockerApi, socket_of
from dsec.demo.docker_boxes import DockerBoxes
from dsec.demo.dsec_boxes import DsecBoxes, export_root
from dsec.demo.fetch import cache_directory
from dsec.demo.grade import agent_environment, grader_environment
from dsec.demo.job import plan, run_job
from dsec.demo.pairs import TASKS, Task, task_named
from dsec.demo.policies import Case
from dsec.demo.prepare import prepare_layers
from dsec.demo.report import JobResult
from dsec.demo.table import Board
from dsec.demo.truth import make_cases
from dsec.errors import InvalidArgument

__all__ = ["Options", "run_demo"]


@dataclass(frozen=True)
class Options:
    """What the user chose. ``samples`` is for each task; no ``tasks``: all; no ``cache``: the usual place."""

    image: str = "dsec/debian:12"
    tasks: tuple[str, ...] = ()
    samples: int = 8
    parallel: int = 16
    docker: bool = False
    cache: Path | None = None

    def chosen(self) -> Sequence[Task]:
        """The tasks; raises InvalidArgument for a name that is none, or for numbers below 1."""
        if self.samples < 1 or self.parallel < 1:
            raise InvalidArgument("--samples and --parallel must be at least 1")
        try:
            return [task_named(name) for name in self.tasks] or list(TASKS)
        except KeyError as unknown:
            names = ", ".join(task.name for task in TASKS)
            raise InvalidArgument(f"no task is named {unknown.args[0]!r}", remedy=f"There are: {names}") from None


async def run_demo(client: dsec.DSecClient, options: Options, console: Console) -> list[JobResult]:
    """Run the job, dsec first; raises DSecError when it cannot be prepared. What fails later is in the results."""
    tasks = options.chosen()
    cache = options.cache or cache_directory(os.environ)
    run_id = secrets.token_hex(6)
    boxes = DsecBoxes(client, run_id)
    if not options.docker:
        return [await _on(boxes, options, tasks, cache, console)]
    async with DockerApi(socket_of(os.environ)) as api:
        docker = DockerBoxes(api, run_id, lambda image: export_root(client, image))
        return [
            await _on(boxes, options, tasks, cache, console),
            await _on(docker, options, tasks, cache, console),
        ]


async def _on(boxes: Boxes, options: Options, tasks: Sequence[Task], cache: Path, console: Console) -> JobResult:
    def say(text: str) -> None:
        console.print(f"{boxes.platform}: {text}", highlight=False, markup=False)

    prepared = await prepare_layers(boxes, options.image, tasks, cache, say)
    cases = await make_cases(boxes, options.image, tasks, prepared, cache, say)
    if isinstance(boxes, DockerBoxes):
        say("building images")
        await boxes.prepare(_environments(options.image, cases, prepared.toolkit))
    planned = plan(cases, options.samples)
    say(f"running {len(planned)} samples, {options.parallel} at once")
    with Board(console, planned, f"dsec demo on {boxes.platform}") as board:
        return await run_job(
            boxes, options.image, prepared.toolkit, planned, parallel=options.parallel, on_stage=board.on_stage
        )


def _environments(image: str, cases: Sequence[Case], toolkit: str) -> list[Environment]:
    agents = [agent_environment(image, case, toolkit) for case in cases]
    return agents + [grader_environment(image, case.task, case.grader_layer, toolkit) for case in cases]
