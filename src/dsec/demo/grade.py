"""Take an agent's work over and grade it in a second, fresh sandbox."""

from __future__ import annotations

import shlex

from dsec.demo.boxes import Box, Environment, Outcome
from dsec.demo.pairs import Task
from dsec.demo.patch import Patch, difference, pack, read_archive
from dsec.demo.policies import AGENT_MEMORY_MIB, REPOSITORY, Case, apply_script
from dsec.demo.verdict import PYTEST_OPTIONS, Judgement, Verdict, judge
from dsec.errors import CallerError, NodeError

__all__ = ["TOOLKIT_PATH", "agent_environment", "extract", "grade", "grader_environment", "run_suite"]

TOOLKIT_PATH = "/opt/toolkits/pytest"
_GRADER_MEMORY_MIB = 1024
_SUITE_S = 900.0
"""Many times what a suite takes: on a busy machine slow is not wrong."""
_STEP_S = 60.0


def _environment(image: str, task: Task, workspace: str, toolkit: str, memory_mib: int) -> Environment:
    roots = [f"{REPOSITORY}/{task.import_root}".rstrip("/"), REPOSITORY, TOOLKIT_PATH]
    env = {
        "PYTHONPATH": ":".join(dict.fromkeys(roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    return Environment(image=image, workspace=workspace, toolkits=(toolkit,), env=env, memory_mib=memory_mib)


def agent_environment(image: str, case: Case, toolkit: str) -> Environment:
    """Where an agent works: release N with pytest at hand."""
    return _environment(image, case.task, case.agent_layer, toolkit, AGENT_MEMORY_MIB)


def grader_environment(image: str, task: Task, grader_layer: str, toolkit: str) -> Environment:
    """Where work is graded: release N's source, everything else of N+1."""
    return _environment(image, task, grader_layer, toolkit, _GRADER_MEMORY_MIB)


async def extract(box: Box, case: Case) -> Patch:
    """What the agent changed in the package's source.

    A source directory that is gone, unreadable or absurdly large is the agent's doing: an empty patch, which fails.
    """
    script = f"exec tar -C {REPOSITORY} --exclude=__pycache__ -cf - -- {shlex.quote(case.task.source)}"
    outcome = await box.run(script, timeout_s=_STEP_S)
    if outcome.exit_code != 0:
        return Patch(written={}, removed=frozenset())
    try:
        changed = read_archive(outcome.stdout, case.task.source)
    except CallerError:
        return Patch(written={}, removed=frozenset())
    return difference(case.original, changed)


async def run_suite(box: Box, task: Task) -> Outcome:
    """Run the task's tests; what the run wrote is in the outcome's ``stdout``."""
    options = shlex.join(PYTEST_OPTIONS)
    script = f"cd {REPOSITORY} && exec python3 -m pytest {options} {shlex.quote(task.tests)}"
    return await box.run(script, timeout_s=_SUITE_S)


async def apply(box: Box, task: Task, patch: Patch) -> None:
    """Lay a patch over the source; raises NodeError when that fails, for the names in it are checked before."""
    outcome = await box.run(
        apply_script(patch, task.source), timeout_s=_STEP_S, stdin=pack(patch.written, task.source)
    )
    if outcome.exit_code != 0:
        said = outcome.stderr[-300:].decode(errors="replace").strip()
        raise NodeError(f"a patch could not be laid over the source: {said}", sandbox_id=box.id, phase="grade")


async def grade(box: Box, case: Case, patch: Patch) -> Judgement:
    """Judge a patch in a fresh sandbox; raises DSecError when the platform fails, which scores nothing."""
    if patch:
        await apply(box, case.task, patch)
    outcome = await run_suite(box, case.task)
    judgement = judge(case.truth, outcome.exit_code, outcome.stdout.decode(errors="replace"))
    if outcome.exit_code is None:
        how = (
            f"took longer than {_SUITE_S:g} s"
            if outcome.timed_out
            else f"was killed, {outcome.oom_kills} times for memory"
        )
        judgement = Judgement(Verdict.FAIL, f"the test run {how}")
    if judgement.verdict is Verdict.FAIL and not patch:
        return Judgement(Verdict.FAIL, f"empty patch: {judgement.reason}")
    return judgement
