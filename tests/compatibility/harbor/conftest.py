"""A local Harbor task, and no word home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HARBOR_TELEMETRY"] = "off"

TASK = """
version = "1.0"
[verifier]
timeout_sec = 60
[agent]
timeout_sec = 60
[environment]
docker_image = "dsec/debian:12"
network_mode = "no-network"
cpus = 0.5
memory_mb = 256
workdir = "/srv"
[environment.env]
COLOUR = "blue"
"""
SOLVE = """#!/bin/bash
set -e
cat given.txt > answer.txt
echo "$COLOUR" >> answer.txt
"""
TEST = """#!/bin/bash
if [ "$(cat /srv/answer.txt)" = "$(cat /tests/expected.txt)" ]; then
	echo 1 > /logs/verifier/reward.txt
else
	echo 0 > /logs/verifier/reward.txt
fi
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Its solution copies a file that the environment was given and adds a variable of the task."""
    folder = tmp_path / "copy-it"
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Copy /srv/given.txt to /srv/answer.txt, and add the colour.",
        "environment/given.txt": "given\n",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": TEST,
        "tests/expected.txt": "given\nblue\n",
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder
