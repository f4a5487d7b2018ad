"""Run the peers' suites, each in its own environment, over one private node.

``python -m tests.compatibility.run [PEER…]`` from the checkout, as root. One line per suite; of a failed
one also the end of its output. The whole output of each is in build/compat/PEER.log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from tests.compatibility.environments import BUILT, CHECKOUT, HERE, OLDEST_PYTHON, environment, suite

from dsec.testing.node import RunningNode, private_node, wait_until
from dsec.testing.store import ensure_store

_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|xfailed|xpassed|skipped|deselected)")


def run(peer: str, node: RunningNode) -> tuple[str, bool]:
    """One suite's line, and whether all of it is as expected and nothing is left on the node."""
    begun = time.monotonic()
    python = environment(peer)
    log = BUILT / f"{peer}.log"
    argv = [
        str(python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(CHECKOUT),
        *suite(peer),
        *os.environ.get("COMPAT_ARGS", "").split(),
    ]  # fmt: skip
    with log.open("w") as output:
        ended = subprocess.run(
            argv,
            cwd=CHECKOUT,
            env=node.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    text = log.read_text(errors="replace")
    summary = ", ".join(f"{n} {what}" for n, what in _COUNTS.findall(text.rstrip().rpartition("\n")[2]))
    good = ended == 0
    try:
        wait_until(lambda: node.leftovers() == [], "the suite's sandboxes are gone", timeout_s=30)
    except AssertionError:
        summary, good = f"{summary}; left {node.leftovers()}", False
        node.stop_all()
    if not good:
        print(text[-12000:])
    return f"compatibility {peer}: {summary or f'exit {ended}'} in {time.monotonic() - begun:.0f} s", good


def main() -> int:
    """0 when every suite is as expected."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the node goes down as after Ctrl-C
    peers = sys.argv[1:] or list(OLDEST_PYTHON)
    BUILT.mkdir(parents=True, exist_ok=True)
    failed = 0
    with private_node(ensure_store(CHECKOUT / "build" / "test-store")) as node:
        for peer in peers:
            line, good = run(peer, node)
            print(line, flush=True)
            failed += not good
    print(f"suites: {len(peers) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
