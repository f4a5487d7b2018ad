"""mini-swe-agent's own agent and model over dsec: by our environment, and by its unmodified Docker environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

import dsec
import dsec.sync
from dsec.testing.node import wait_until

IMAGE = "dsec/debian:12"
OURS = "dsec.integrations.minisweagent.DsecEnvironment"
DSEC = str(Path(sys.executable).parent / "dsec")
Make = Callable[..., Any]


@pytest.fixture(params=["by-import-path", "its-docker-environment"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes environments as mini-swe-agent's configuration would; they are cleaned up, and gone, at the end."""
    made: list[Any] = []

    def make_one(**fields: Any) -> Any:
        config = {"image": IMAGE, "cwd": "/srv", **fields}
        if request.param == "by-import-path":
            made.append(get_environment({"environment_class": OURS, **config}))
        else:
            made.append(get_environment({"environment_class": "docker", "executable": DSEC, **config}))
        return made[-1]

    yield make_one
    for environment in made:
        environment.cleanup()
    with dsec.sync.DSecClient() as client:
        wait_until(lambda: not list(client.find()), "the environments' sandboxes are stopped", timeout_s=60)


def run_agent(environment: Any, *commands: str, **options: Any) -> tuple[DefaultAgent, dict[str, Any]]:
    """mini-swe-agent's default agent, whose model says these commands one by one."""
    outputs = [make_output(f"Step {number}", [{"command": one}]) for number, one in enumerate(commands)]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs, cost_per_call=0.0), environment, system_template="You work.",
        instance_template="{{task}} in {{cwd}}", cost_limit=0, **options,
    )  # fmt: skip
    return agent, agent.run("Repair it")


def test_an_agent_works_and_submits(make: Make) -> None:
    """Files stay between commands, the exit code and both streams reach the model, the submission ends the run."""
    agent, ended = run_agent(
        make(env={"COLOUR": "blue"}),
        "echo 'print(6 * 7)' > answer.py; pwd",
        "python3 answer.py; echo trouble >&2; exit 3",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer.py && echo $COLOUR",
    )
    assert ended == {"exit_status": "Submitted", "submission": "print(6 * 7)\nblue\n"}
    said = [str(message["content"]) for message in agent.messages if message["role"] == "user"]
    assert said[0] == "Repair it in /srv"
    assert said[1] == "<returncode>0</returncode>\n<output>\n/srv\n</output>"
    assert said[2] == "<returncode>3</returncode>\n<output>\n42\ntrouble\n</output>"


def test_a_command_that_takes_too_long_is_told_to_the_model(make: Make) -> None:
    """After its timeout the command has no exit code, and the next one runs."""
    environment = make(timeout=10)  # of which its Docker environment spends some on starting a process
    found = environment.execute({"command": "echo begun; sleep 60"})
    assert found["returncode"] == -1 and found["output"] == "begun\n" and found["exception_info"]
    assert environment.execute({"command": "echo next"})["output"] == "next\n"


def test_commands_arrive_verbatim(make: Make) -> None:
    """Quotes, newlines, dollars, here-documents and output that is not UTF-8."""
    environment = make()
    text = "'single' \"double\" $HOME `id` \\ \n\ttab ✨"
    found = environment.execute({"command": f"cat <<'END'\n{text}\nEND"})
    assert (found["output"], found["returncode"]) == (f"{text}\n", 0)
    assert environment.execute({"command": "printf '\\303('"})["output"] == "\ufffd("


def test_output_of_both_streams_is_in_order() -> None:
    """Ours has one descriptor for both, so the order is the program's."""
    environment = get_environment({"environment_class": OURS, "image": IMAGE})
    try:
        script = "for n in $(seq 200); do echo out $n; echo err $n >&2; done"
        found = environment.execute({"command": script})
        assert found["output"] == "".join(f"out {n}\nerr {n}\n" for n in range(1, 201))
    finally:
        environment.cleanup()


def test_a_timeout_leaves_no_process() -> None:
    """Ours kills what a timeout ends, children included; Docker's environment cannot."""
    environment = get_environment({"environment_class": OURS, "image": IMAGE, "timeout": 1})
    try:
        environment.execute({"command": "setsid sleep 1234 & sleep 1234"})
        found = environment.execute({"command": "cat /proc/[0-9]*/comm"})
        assert "cat" in found["output"] and "sleep" not in found["output"]
        assert all(one.ended is not None for one in environment.sandbox.execs())
    finally:
        environment.cleanup()


@pytest.mark.parametrize(
    ("fields", "says", "code"),
    [
        ({"cwd": "/no/such/place"}, "/no/such/place", 126),
        ({}, "no-such-shell", 127),
    ],
    ids=["directory", "interpreter"],
)
def test_what_cannot_start_is_told_to_the_model(fields: dict[str, Any], says: str, code: int) -> None:
    """As a shell would, not as an error of the platform."""
    config = {"environment_class": OURS, "image": IMAGE}
    environment = get_environment(config if fields else config | {"interpreter": ["no-such-shell"]})
    try:
        found = environment.execute({"command": "true"}, **fields)
        assert found["returncode"] == code and says in found["output"]
    finally:
        environment.cleanup()


def test_a_lost_sandbox_ends_the_run_without_a_submission(tmp_path: Path) -> None:
    """The fault is raised, not shown to the model as a command's output; the trajectory's exit status names it."""
    environment = get_environment({"environment_class": OURS, "image": IMAGE})
    environment.sandbox.stop()
    outputs = [make_output("Step", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}])]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs), environment, system_template="", instance_template="{{task}}",
        cost_limit=0, output_path=tmp_path / "trajectory.json",
    )  # fmt: skip
    with pytest.raises(dsec.SandboxGone):
        agent.run("Repair it")
    assert agent.serialize()["info"]["exit_status"] == "SandboxGone"
    assert agent.serialize()["info"]["submission"] == ""
    environment.cleanup()
