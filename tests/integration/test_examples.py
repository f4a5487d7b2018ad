"""The README's program and those of examples/ run as they stand, and clean up after themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.testing.node import RunningNode, wait_until

pytestmark = pytest.mark.node

CHECKOUT = Path(__file__).parents[2]
EXPECTED = {
    "hello.py": r"0 Python 3\.\d+\.\d+\nroot\n\n",
    "repair_loop.py": r"repairs it: pass\ngives up: fail\nedits the test: fail\nrewrites it later: fail\n",
}


def run(node: RunningNode, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program against the node as a user would, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *argv], env=node.environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    wait_until(lambda: node.live_sandboxes() == [], "the program has cleaned up")
    return done


@pytest.mark.parametrize("path", sorted((CHECKOUT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples(node: RunningNode, path: Path) -> None:
    """Each example says what is expected of it; a new one needs an expectation here."""
    assert re.fullmatch(EXPECTED[path.name], run(node, str(path)).stdout)


def test_the_readmes_first_program(node: RunningNode) -> None:
    """The first Python block of the README runs unchanged."""
    blocks = re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "README.md").read_text(), re.M | re.S)
    assert blocks, "the README has no program"
    assert run(node, "-c", blocks[0]).stdout.strip()
