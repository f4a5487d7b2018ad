"""A sample's way from its agent's sandbox to a verdict."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from dsec.demo.boxes import BoxEnd, Environment, LayerSource, Outcome
from dsec.demo.job import plan, run_job
from dsec.demo.pairs import TASKS
from dsec.demo.patch import Patch, pack
from dsec.demo.policies import POLICIES, Case, Policy, apply_script
from dsec.demo.prepare import Prepared
from dsec.demo.report import JobResult
from dsec.demo.table import Board
from dsec.demo.truth import make_cases
from dsec.demo.verdict import Truth, Verdict
from dsec.errors import ExecutableNotFound, NodeError

Answer = Callable[[Environment, str], Outcome]


def outcome(
    exit_code: int | None = 0, stdout: bytes = b"", *, timed_out: bool = False, oom_kills: int = 0
) -> Outcome:
    """How a script ended."""
    return Outcome(exit_code, timed_out, oom_kills, stdout, b"")


@dataclass
class FakeBox:
    """A box of ``FakeBoxes``."""

    boxes: FakeBoxes
    environment: Environment
    id: str
    stopped: bool = False

    async def run(self, script: str, *, timeout_s: float, stdin: bytes | None = None) -> Outcome:
        """Answer as told; a stopped box is a defect of the caller."""
        assert not self.stopped
        self.boxes.story.append(("run", self.id, script))
        return self.boxes.answer(self.environment, script)

    async def stop(self) -> BoxEnd:
        """Note it."""
        self.stopped = True
        self.boxes.story.append(("stop", self.id, ""))
        return BoxEnd(processes=0, cpu_s=0.5, memory_peak_mib=10.0)


@dataclass
class FakeBoxes:
    """Boxes whose programs are a function of the environment and the script."""

    answer: Answer
    story: list[tuple[str, str, str]] = field(default_factory=list)
    made: list[FakeBox] = field(default_factory=list)

    @property
    def platform(self) -> str:
        """fake."""
        return "fake"

    async def build(self, layers: Sequence[LayerSource]) -> None:
        """Note the references."""
        self.story += [("build", layer.reference, "") for layer in layers]

    async def create(self, environment: Environment) -> FakeBox:
        """A box, numbered."""
        box = FakeBox(self, environment, f"box{len(self.made)}")
        self.made.append(box)
        self.story.append(("create", box.id, environment.workspace or ""))
        return box

    async def left(self) -> int:
        """Boxes that were not stopped."""
        return sum(not box.stopped for box in self.made)


TASK = TASKS[0]
CASE = Case(
    task=TASK,
    original={"__init__.py": b"broken"},
    golden=Patch({"__init__.py": b"fixed"}, frozenset()),
    truth=Truth(frozenset({"t::fixed"}), frozenset({"t::kept"})),
    agent_layer="workspace/agent:1",
    grader_layer="workspace/grader:1",
)
PASSED = b"== short test summary info ==\nPASSED t::fixed\nPASSED t::kept\n2 passed in 0.1s\n"
FAILED = b"== short test summary info ==\nPASSED t::kept\nFAILED t::fixed - x\n1 failed, 1 passed in 0.1s\n"
UNCHANGED = pack(CASE.original, TASK.source)


async def act_nothing(box: object, case: Case) -> None:
    """An agent that does nothing."""


def run(boxes: FakeBoxes, policy: Policy) -> JobResult:
    """A job of one sample."""
    return asyncio.run(
        run_job(boxes, "image", "toolkit/t:1", [(CASE, policy)], parallel=2, on_stage=lambda index, stage: None)
    )


def answering(*, source: bytes = UNCHANGED, suite: bytes = FAILED, suite_exit: int = 1) -> FakeBoxes:
    """Boxes whose source reads as ``source`` and whose tests end as ``suite``."""

    def answer(environment: Environment, script: str) -> Outcome:
        if "-m pytest" in script:
            return outcome(suite_exit, suite)
        return outcome(0, source if "tar" in script and "-cf" in script else b"")

    return FakeBoxes(answer)


IDLE = Policy("idle", Verdict.FAIL, act_nothing)


def test_grading_begins_after_the_agents_box_is_dead() -> None:
    """The order that the whole check rests on: agent's box made and stopped, only then the grader's made."""
    boxes = answering()
    run(boxes, IDLE)
    marks = [(what, box) for what, box, _ in boxes.story if what != "run"]
    assert marks == [("create", "box0"), ("stop", "box0"), ("create", "box1"), ("stop", "box1")]
    assert [box.environment.workspace for box in boxes.made] == ["workspace/agent:1", "workspace/grader:1"]


def test_an_empty_patch_is_graded_and_fails() -> None:
    """Nothing changed, so nothing is laid over the source; the tests run all the same."""
    boxes = answering()
    sample = run(boxes, IDLE).samples[0]
    assert (sample.observed, sample.patch) == (Verdict.FAIL, "empty")
    assert [script for _, box, script in boxes.story if box == "box1" and "tar" in script] == []


def test_a_patch_travels_alone() -> None:
    """Only the changed source reaches the second box; what else the agent's archive claims does not."""
    changed = pack({"__init__.py": b"fixed"}, TASK.source)
    boxes = answering(source=changed, suite=PASSED, suite_exit=0)
    sample = run(boxes, Policy("works", Verdict.PASS, act_nothing)).samples[0]
    assert (sample.observed, sample.patch, sample.right) == (Verdict.PASS, "1 written, 0 removed", True)


@pytest.mark.parametrize("where", ["agent", "grader"])
def test_a_fault_of_the_platform_masks_the_sample(where: str) -> None:
    """A node that fails in either box gives no verdict, fails the job, and leaves no box."""

    def answer(environment: Environment, script: str) -> Outcome:
        if script != "true" and f"workspace/{where}:1" == environment.workspace:
            raise NodeError("the node is gone")
        return outcome(0, UNCHANGED)

    boxes = FakeBoxes(answer)
    result = run(boxes, IDLE)
    assert result.samples[0].observed is Verdict.MASKED
    assert not result.ok
    assert all(box.stopped for box in boxes.made)


def test_an_agent_that_wrecks_its_own_box_fails() -> None:
    """A shell that the agent deleted is the agent's doing: an empty patch, graded, not masked."""

    def answer(environment: Environment, script: str) -> Outcome:
        if environment.workspace == "workspace/agent:1" and script != "true":
            raise ExecutableNotFound("no /bin/sh")
        return outcome(1, FAILED)

    assert run(FakeBoxes(answer), IDLE).samples[0].observed is Verdict.FAIL


@pytest.mark.parametrize("garbage", [b"", b"not a tar archive" * 100])
def test_a_lying_tar_program_gives_an_empty_patch(garbage: bytes) -> None:
    """No archive at all reads as a source that is gone: the patch removes all, and the verdict is fail."""
    assert run(answering(source=garbage), IDLE).samples[0].observed is Verdict.FAIL


@pytest.mark.parametrize(
    ("name", "ended", "observed"),
    [
        ("hang", outcome(None, timed_out=True), Verdict.FAIL),
        ("hang", outcome(0), Verdict.MASKED),
        ("memory hog", outcome(None, oom_kills=1), Verdict.FAIL),
        ("memory hog", outcome(None, timed_out=True), Verdict.MASKED),
        ("memory hog", outcome(0), Verdict.MASKED),
    ],
)
def test_a_limit_that_does_not_bind_is_a_fault_of_the_platform(name: str, ended: Outcome, observed: Verdict) -> None:
    """A hang that nothing ends, or a hog that nothing stops, is never scored."""

    def answer(environment: Environment, script: str) -> Outcome:
        if "sleep 1000" in script or "bytearray" in script:
            return ended
        return outcome(1, FAILED) if "pytest" in script else outcome(0, UNCHANGED)

    policy = next(policy for policy in POLICIES if policy.name == name)
    assert run(FakeBoxes(answer), policy).samples[0].observed is observed


def test_the_plan_covers_every_policy_for_every_task() -> None:
    """8 samples of a task are its 8 policies, 16 are each twice; those that hang start first."""
    planned = plan([CASE, CASE], 8)
    assert len(planned) == 16
    assert [policy.name for _, policy in planned[:2]] == ["hang", "hang"]
    assert sorted({policy.name for _, policy in planned}) == sorted(policy.name for policy in POLICIES)
    assert len(plan([CASE], 16)) == 16


def test_the_truth_of_the_policies() -> None:
    """Two of the eight deserve a pass."""
    assert [policy.name for policy in POLICIES if policy.expected is Verdict.PASS] == ["golden", "golden by file"]
    assert len(POLICIES) == 8


def test_names_in_a_patch_are_quoted() -> None:
    """A file name is never shell code."""
    script = apply_script(Patch({}, frozenset({"$(touch x).py", "-rf"})), "pkg")
    assert "rm -f -- /testbed/pkg/'$(touch x).py'" in script
    assert "rm -f -- /testbed/pkg/-rf" in script


def test_without_a_terminal_each_verdict_is_one_line() -> None:
    """A log shows samples as they end, with how many there are, and no control characters."""
    stream = io.StringIO()
    with Board(Console(file=stream, width=118), [(CASE, IDLE), (CASE, IDLE)], "title") as board:
        board.on_stage(0, "agent")
        board.on_stage(0, "fail")
        board.on_stage(1, "masked")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "1/2" in lines[0]
    assert lines[1].endswith("masked")
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_there_is_one_live_table() -> None:
    """The table has a row for the task, its policy's column, and the verdict in the cell."""
    stream = io.StringIO()
    golden = POLICIES[0]
    with Board(Console(file=stream, width=118, force_terminal=True), [(CASE, golden)], "title") as board:
        board.on_stage(0, "agent")
        board.on_stage(0, "pass")
    text = stream.getvalue()
    assert CASE.task.name in text
    assert "1 of 1 graded" in text


def test_an_error_while_the_truth_is_found_is_raised_itself(tmp_path: Path) -> None:
    """One suite that does not run ends the preparation with that error, not a group of errors, and leaves no box."""

    def answer(environment: Environment, script: str) -> Outcome:
        raise NodeError("the node is gone")

    boxes = FakeBoxes(answer)
    for version in (TASK.broken, TASK.golden):
        (tmp_path / version / TASK.source).mkdir(parents=True)
    releases = {(TASK.project, version): tmp_path / version for version in (TASK.broken, TASK.golden)}
    prepared = Prepared("toolkit/t:1", {TASK.name: "workspace/agent:1"}, {TASK.name: "workspace/grader:1"}, releases)
    with pytest.raises(NodeError, match="the node is gone"):
        asyncio.run(make_cases(boxes, "image", [TASK, TASK], prepared, tmp_path / "cache", lambda text: None))
    assert all(box.stopped for box in boxes.made)


def test_the_truth_is_measured_once(tmp_path: Path) -> None:
    """The second run reads FAIL_TO_PASS and PASS_TO_PASS from the cache and needs no box."""
    suites = iter([FAILED, PASSED])

    def answer(environment: Environment, script: str) -> Outcome:
        return outcome(1, next(suites)) if "pytest" in script else outcome(0)

    releases = {(TASK.project, TASK.broken): tmp_path / "n", (TASK.project, TASK.golden): tmp_path / "n1"}
    for release, path in releases.items():
        (path / TASK.source).mkdir(parents=True)
        (path / TASK.source / "__init__.py").write_text(release[1])
    prepared = Prepared("toolkit/t:1", {TASK.name: "workspace/agent:1"}, {TASK.name: "workspace/grader:1"}, releases)
    boxes = FakeBoxes(answer)
    for _ in range(2):
        cases = asyncio.run(make_cases(boxes, "image", [TASK], prepared, tmp_path / "cache", lambda text: None))
        assert cases[0].truth == CASE.truth
        assert dict(cases[0].golden.written) == {"__init__.py": TASK.golden.encode()}
    assert len(boxes.made) == 2
