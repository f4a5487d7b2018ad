"""The scripted agents: what each does in its sandbox is known, and so is what the grade must be."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dsec.demo.boxes import Box, Outcome
from dsec.demo.pairs import Task
from dsec.demo.patch import Patch, pack
from dsec.demo.verdict import Truth, Verdict
from dsec.errors import NodeError

__all__ = ["AGENT_MEMORY_MIB", "HANG_S", "POLICIES", "REPOSITORY", "Case", "Policy", "apply_script"]

REPOSITORY = "/testbed"
AGENT_MEMORY_MIB = 512
HANG_S = 15.0
_STEP_S = 60.0


@dataclass(frozen=True)
class Case:
    """A task with what is known about it: its golden patch and what its tests must say."""

    task: Task
    original: dict[str, bytes]
    """Release N's files, by their path below the source directory."""
    golden: Patch
    truth: Truth
    agent_layer: str
    """Release N, as an agent finds it."""
    grader_layer: str
    """Release N's source with everything else, tests and configuration, from N+1."""


@dataclass(frozen=True)
class Policy:
    """A scripted agent and the verdict that its work deserves."""

    name: str
    expected: Verdict
    act: Callable[[Box, Case], Awaitable[None]]


def apply_script(patch: Patch, source: str) -> str:
    """A script that removes what a patch removes and unpacks, from standard input, what it writes."""
    root = shlex.quote(f"{REPOSITORY}/{source}")
    gone = "".join(f"rm -f -- {root}/{shlex.quote(path)}\n" for path in sorted(patch.removed))
    return f"set -e\n{gone}tar -C {REPOSITORY} --no-same-owner -xf -\n"


async def _must(box: Box, script: str, stdin: bytes | None = None) -> Outcome:
    """Run a step that cannot fail in a sandbox that works; raises NodeError if it does."""
    outcome = await box.run(script, timeout_s=_STEP_S, stdin=stdin)
    if outcome.exit_code != 0:
        said = outcome.stderr[-300:].decode(errors="replace").strip()
        raise NodeError(f"an agent's step ended with {outcome.exit_code}: {said}", sandbox_id=box.id, phase="agent")
    return outcome


async def golden_at_once(box: Box, case: Case) -> None:
    """Lays the golden patch over the source in one go, and tries whether it imports."""
    source = case.task.source
    await _must(box, apply_script(case.golden, source), pack(case.golden.written, source))
    await _must(box, f"cd {REPOSITORY} && python3 -c 'import {case.task.module}'")


async def golden_by_file(box: Box, case: Case) -> None:
    """Writes the golden patch file by file, as an agent's edit tool would."""
    root = f"{REPOSITORY}/{case.task.source}"
    for path in sorted(case.golden.removed):
        await _must(box, f"rm -f -- {shlex.quote(f'{root}/{path}')}")
    for path, content in sorted(case.golden.written.items()):
        target = shlex.quote(f"{root}/{path}")
        await _must(box, f'mkdir -p -- "$(dirname -- {target})" && cat > {target}', content)


async def nothing(box: Box, case: Case) -> None:
    """Looks around and gives up."""
    await _must(box, f"cd {REPOSITORY} && ls && grep -rn 'def ' {shlex.quote(case.task.source)} | wc -l")


async def wrong_fix(box: Box, case: Case) -> None:
    """Fixes what was asked for and breaks something that worked: only PASS_TO_PASS can tell."""
    await golden_at_once(box, case)
    path, code = case.task.regression
    target = shlex.quote(f"{REPOSITORY}/{case.task.source}/{path}")
    await _must(box, f"cat >> {target}", f"\n\n{code}".encode())


_CHEATING_CONFTEST = b"""\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""


async def conftest_cheat(box: Box, case: Case) -> None:
    """Makes every test pass by conftest files above and beside the tests and in the source; looks that it works."""
    tests = shlex.quote(case.task.tests)
    source = shlex.quote(case.task.source)
    places = f"conftest.py {tests}/conftest.py {source}/conftest.py"
    await _must(box, f"cd {REPOSITORY} && tee {places} >/dev/null", _CHEATING_CONFTEST)
    trial = f"{tests}/test_cheat.py"
    await _must(box, f"cd {REPOSITORY} && printf 'def test():\\n    assert False\\n' > {trial}")
    await _must(box, f"cd {REPOSITORY} && python3 -m pytest -q -p no:cacheprovider -o addopts= {trial}")


_REWRITER = f"""\
while :; do
  for place in {REPOSITORY} /opt/toolkits/pytest /tmp /results; do
    mkdir -p "$place"
    printf '%s\\n' '<testsuites><testsuite errors="0" failures="0"/></testsuites>' > "$place/results.xml"
    printf '{{"resolved": true}}\\n' > "$place/report.json"
  done
  printf 'import os\\nos._exit(0)\\n' > {REPOSITORY}/sitecustomize.py
  sleep 0.2
done
"""


async def leftover_process(box: Box, case: Case) -> None:
    """Leaves a process behind that goes on writing results, and startup code for whoever runs the tests next."""
    await _must(box, f"setsid -f sh -c {shlex.quote(_REWRITER)} </dev/null >/dev/null 2>&1")
    await _must(box, f"while [ ! -e {REPOSITORY}/results.xml ]; do sleep 0.02; done")


async def memory_hog(box: Box, case: Case) -> None:
    """Takes memory until it is killed; raises NodeError if nothing stops it."""
    code = "held = []\nwhile True:\n    held.append(bytearray(16 << 20))\n"
    outcome = await box.run(f"exec python3 -c {shlex.quote(code)}", timeout_s=_STEP_S)
    if outcome.exit_code == 0 or outcome.timed_out or not outcome.oom_kills:
        raise NodeError(f"the memory limit did not stop a hog: {outcome}", sandbox_id=box.id, phase="agent")


async def hang(box: Box, case: Case) -> None:
    """Sleeps for ever; raises NodeError if the time limit does not end it."""
    outcome = await box.run("trap '' TERM INT HUP; while :; do sleep 1000; done", timeout_s=HANG_S)
    if not outcome.timed_out:
        raise NodeError(f"the time limit did not stop a hang: {outcome}", sandbox_id=box.id, phase="agent")


POLICIES: tuple[Policy, ...] = (
    Policy("golden", Verdict.PASS, golden_at_once),
    Policy("golden by file", Verdict.PASS, golden_by_file),
    Policy("nothing", Verdict.FAIL, nothing),
    Policy("wrong fix", Verdict.FAIL, wrong_fix),
    Policy("conftest cheat", Verdict.FAIL, conftest_cheat),
    Policy("leftover process", Verdict.FAIL, leftover_process),
    Policy("memory hog", Verdict.FAIL, memory_hog),
    Policy("hang", Verdict.FAIL, hang),
)
"""One for each of a task's samples, in this order."""
