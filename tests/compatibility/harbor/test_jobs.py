"""Harbor's own jobs over dsec, by its command: the oracle is right, the idle agent is wrong, a fault is neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = "dsec.integrations.harbor:DsecEnvironment"


def run_job(task: Path, agent: str, *more: str) -> dict[str, Any]:
    """One trial's result.json."""
    jobs = task.parent / "jobs"
    argv = [
        str(Path(sys.executable).parent / "harbor"), "run", "--path", str(task), "--agent", agent,
        "--env", ENVIRONMENT, "--jobs-dir", str(jobs), "--quiet", "--yes", *more,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL
    )  # fmt: skip
    found = list(jobs.glob("*/*/result.json"))
    assert len(found) == 1, ended.stdout + ended.stderr
    result: dict[str, Any] = json.loads(found[0].read_text())
    return result


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_reward(task: Path, agent: str, reward: float) -> None:
    """The reference solution scores 1.0, doing nothing scores 0.0, and neither has an exception."""
    result = run_job(task, agent)
    assert result["exception_info"] is None
    assert result["verifier_result"]["rewards"] == {"reward": reward}


def test_a_lost_sandbox_has_no_reward(task: Path) -> None:
    """A trial whose sandbox is destroyed under its agent ends with SandboxGone, and is not verified."""
    result = run_job(task, "destroyer:SandboxDestroyer")
    assert result["exception_info"]["exception_type"] == "SandboxGone"
    assert result["verifier_result"] is None


def test_a_task_without_an_image_is_refused(task: Path) -> None:
    """Nothing is built from a Dockerfile: the trial says so, with what to do, instead of running something else."""
    config = task / "task.toml"
    config.write_text(config.read_text().replace('docker_image = "dsec/debian:12"\n', ""))
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\n")
    with pytest.raises(AssertionError, match="docker_image"):
        run_job(task, "nop")
