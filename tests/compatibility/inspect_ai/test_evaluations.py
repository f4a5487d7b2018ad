"""Evaluations with Inspect's mock model: what becomes of a sample whose sandbox is lost, and of what is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from inspect_ai import Task, eval
from inspect_ai._cli.sandbox import sandbox_command
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, bash, tool
from inspect_ai.util import sandbox

import dsec
import dsec.sync
from dsec.integrations.inspect_ai import LABELS, DsecSandboxConfig, DsecSandboxEnvironment
from dsec.testing.node import wait_until

PROVIDER = "dsec"
doomed: list[str] = []
"""IDs of the sandboxes that a test's tools have destroyed."""
scored: list[str] = []
"""What the scorer was asked about."""


@pytest.fixture(autouse=True)
def fresh_records() -> Iterator[None]:
    """Each test's own."""
    doomed.clear()
    scored.clear()
    yield


@tool
def destroy_sandbox(while_running: bool, times: int = 99) -> Tool:
    """The sandbox is stopped from outside, between two commands or under a running one, in the first attempts."""

    async def execute() -> str:
        """Work in the sandbox."""
        mine = sandbox().as_type(DsecSandboxEnvironment).sandbox
        if len(doomed) >= times:
            return (await sandbox().exec(["echo", "fine"])).stdout
        doomed.append(mine.id)
        async with anyio.create_task_group() as group:
            if while_running:
                group.start_soon(sandbox().exec, ["sleep", "60"])
                while not any(one.argv == ["sleep", "60"] for one in await mine.execs()):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await mine.stop()
        return (await sandbox().exec(["echo", "never"])).stdout

    return execute


@scorer(metrics=[accuracy()])
def counting() -> Scorer:
    """Scores everything as right, and remembers that it was asked."""

    async def score(state: TaskState, target: Target) -> Score:
        scored.append(str(state.sample_id))
        return Score(value="C")

    return score


def evaluate(tmp_path: Path, *calls: tuple[str, dict[str, Any]], tools: list[Tool], **options: Any) -> EvalLog:
    """One sample, whose model makes these tool calls and then answers ``done``; as often as it is tried."""
    turns = [ModelOutput.for_tool_call("mockllm", name, arguments) for name, arguments in calls]
    turns.append(ModelOutput.from_content("mockllm", "done"))
    for turn in turns:
        turn.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it fetches a tokenizer
    task = Task(
        dataset=[Sample(id="one", input="Work.", target="done")], solver=[use_tools(tools), generate()],
        scorer=counting(), sandbox=options.pop("sandbox", PROVIDER),
    )  # fmt: skip
    model = get_model("mockllm/model", custom_outputs=turns * 3, memoize=False)
    return eval(task, model=model, log_dir=str(tmp_path), display="none", **options)[0]


def test_tools_run_in_the_sandbox(tmp_path: Path) -> None:
    """Inspect's own bash tool runs inside, its result reaches the model, the sample is scored."""
    log = evaluate(tmp_path, ("bash", {"command": "echo in $(cat /etc/debian_version)"}), tools=[bash(timeout=30)])
    assert log.status == "success", log.error
    assert log.samples is not None and log.samples[0].scores is not None and scored == ["one"]
    answers = [message.text for message in log.samples[0].messages if isinstance(message, ChatMessageTool)]
    assert len(answers) == 1 and answers[0].startswith("in 12")


@pytest.mark.parametrize("while_running", [False, True], ids=["between-commands", "under-a-command"])
def test_a_sandbox_destroyed_in_the_middle_is_an_error_and_no_score(tmp_path: Path, while_running: bool) -> None:
    """The sample ends with SandboxGone as its error; the scorer is never asked; the model is told nothing."""
    log = evaluate(tmp_path, ("destroy_sandbox", {}), tools=[destroy_sandbox(while_running)])
    assert log.status == "error"
    assert log.samples is not None
    (sample,) = log.samples
    assert (
        sample.error is not None and "SandboxGone" in sample.error.traceback and "has ended" in sample.error.message
    )
    assert not sample.scores and scored == []
    assert not [message for message in sample.messages if isinstance(message, ChatMessageTool)]
    assert log.results is None


def test_a_destroyed_sandbox_is_masked_where_errors_are_allowed(tmp_path: Path) -> None:
    """With ``fail_on_error=False`` the evaluation succeeds over no sample: the lost one does not count as wrong."""
    log = evaluate(tmp_path, ("destroy_sandbox", {}), tools=[destroy_sandbox(False)], fail_on_error=False)
    assert log.samples is not None and log.samples[0].error is not None and not log.samples[0].scores
    assert scored == [] and (log.results is None or log.results.completed_samples == 0)


def test_a_retry_gets_a_fresh_sandbox(tmp_path: Path) -> None:
    """With ``retry_on_error`` the sample runs again elsewhere and is scored once."""
    log = evaluate(
        tmp_path, ("destroy_sandbox", {}), tools=[destroy_sandbox(False, times=1)], retry_on_error=1
    )  # fmt: skip
    assert log.status == "success", log.error
    assert log.samples is not None and len(log.samples[0].error_retries or []) == 1 and scored == ["one"]


def test_a_missing_program_user_or_directory_is_the_commands_failure(tmp_path: Path) -> None:
    """The model reads what was wrong, and the sample goes on to its score."""
    calls = [("try_them", dict[str, Any]())]
    log = evaluate(tmp_path, *calls, tools=[try_them()])
    assert log.status == "success" and log.samples is not None, log.error
    answers = [message.text for message in log.samples[0].messages if isinstance(message, ChatMessageTool)]
    assert [line.split(":")[0] for line in answers[0].splitlines()] == ["127", "126", "126"]
    assert "no-such-program" in answers[0] and "no-such-user" in answers[0] and "/no/such/place" in answers[0]


@tool
def try_them() -> Tool:
    """Three commands that cannot start."""

    async def execute() -> str:
        """Work in the sandbox."""
        tried = [
            await sandbox().exec(["no-such-program"]),
            await sandbox().exec(["true"], user="no-such-user"),
            await sandbox().exec(["true"], cwd="/no/such/place"),
        ]
        return "\n".join(f"{one.returncode}:{one.stderr.strip()}" for one in tried)

    return execute


def test_configuration_is_honoured_and_survives_the_log(tmp_path: Path) -> None:
    """Image, limits and environment are the sandbox's; the log holds them and gives the same configuration back."""
    config = DsecSandboxConfig(memory_mib=256, env={"COLOUR": "blue"}, workdir="/srv")
    log = evaluate(
        tmp_path, ("bash", {"command": "echo $COLOUR $PWD"}), tools=[bash(timeout=30)], sandbox=(PROVIDER, config)
    )  # fmt: skip
    assert log.status == "success" and log.samples is not None, log.error
    answers = [message.text for message in log.samples[0].messages if isinstance(message, ChatMessageTool)]
    assert answers == ["blue /srv\n"]
    assert log.eval.sandbox is not None and log.eval.sandbox.config == config


def test_injected_tools_run(tmp_path: Path) -> None:
    """Inspect's own server, injected into the sandbox, starts and runs a program for ``exec_remote``."""
    log = evaluate(tmp_path, ("remotely", {}), tools=[remotely()])
    assert log.status == "success" and log.samples is not None, log.error
    answers = [message.text for message in log.samples[0].messages if isinstance(message, ChatMessageTool)]
    assert answers == ["0 far away\n"]


@tool
def remotely() -> Tool:
    """A program under Inspect's own process server."""

    async def execute() -> str:
        """Work in the sandbox."""
        ended = await sandbox().exec_remote(["echo", "far away"], stream=False)
        return f"{ended.returncode} {ended.stdout}"

    return execute


def test_a_killed_evaluation_leaves_no_sandbox(tmp_path: Path) -> None:
    """The process is killed while its sample works; its sandbox stops when the lease is over, by nobody's doing."""
    program = f"""
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox
from dsec.integrations.inspect_ai import DsecSandboxConfig
@solver
def forever():
    async def solve(state, generate):
        await sandbox().exec(["sleep", "600"])
        return state
    return solve
eval(Task(dataset=[Sample(input="x")], solver=forever(), sandbox=("dsec", DsecSandboxConfig(lease_s=3))),
     model="mockllm/model", log_dir={str(tmp_path)!r}, display="none")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(info.labels.items() >= LABELS.items() for info in live()), "it works", timeout_s=60)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: live() == [], "the lease is over", timeout_s=30)
    with dsec.sync.DSecClient() as client:
        causes = {info.cause for info in client.find(labels=LABELS, state="stopped") if info.ended_at is not None}
    assert "lease" in causes


def test_inspect_sandbox_cleanup_stops_what_was_left_and_nothing_else(tmp_path: Path) -> None:
    """``inspect sandbox cleanup dsec ID`` stops that one, without ID all of Inspect's, never another sandbox."""
    for _ in range(3):
        evaluate(tmp_path, ("bash", {"command": "true"}), tools=[bash()], sandbox_cleanup=False)
    left = [info.id for info in live() if info.labels.items() >= LABELS.items()]
    assert len(left) == 3
    with dsec.sync.DSecClient() as client, client.sandbox("dsec/debian:12") as other:
        command = [str(Path(sys.executable).parent / "inspect"), "sandbox", "cleanup", PROVIDER, left[0]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout) == (0, "Stopped 1 dsec sandbox\n"), ended.stderr
        assert {info.id for info in live()} == {*left[1:], other.id}
        refused = CliRunner().invoke(sandbox_command, ["cleanup", PROVIDER, other.id])
        assert isinstance(refused.exception, dsec.NotFound)
        assert CliRunner().invoke(sandbox_command, ["cleanup", PROVIDER]).output == "Stopped 2 dsec sandboxes\n"
        assert [info.id for info in live()] == [other.id]


def live() -> list[dsec.SandboxInfo]:
    """The node's live sandboxes."""
    with dsec.sync.DSecClient() as client:
        return list(client.find())
