"""The command line over a real node: exit codes, streams, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsec.testing.node import RunningNode, wait_until

IMAGE = "dsec/debian:12"


def argv(*words: str) -> list[str]:
    """The command line of this checkout."""
    return [sys.executable, "-m", "dsec.cli", *words]


def dsec(node: RunningNode, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        argv(*words), env=node.environment, capture_output=True, text=True, timeout=60, check=False, **options
    )


def test_run_passes_output_and_code_on(node: RunningNode) -> None:
    """Both streams arrive apart and whole, options after the image are the program's, the code is the program's."""
    done = dsec(node, "run", "--rm", "-e", "A=1", "-w", "/tmp", IMAGE, "sh", "-c", "echo $A $PWD; echo e >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "1 /tmp\n", "e\n")
    assert json.loads(dsec(node, "ps", "-a", "-l", "none=such", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "kill -9 $$"], 137),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
        (["true"], 0),
    ],
)
def test_run_exit_codes(node: RunningNode, words: list[str], code: int) -> None:
    """128 + the signal; 127 for a program that is not there; 126 for one that cannot be executed."""
    done = dsec(node, "run", "--rm", IMAGE, *words)
    assert done.returncode == code
    assert (code != 126) or done.stderr.startswith("dsec: cannot execute /etc/passwd: Permission denied\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--pull", "never", "no/such/image", "true"],
        ["UPPER//case", "true"],
        ["-m", "0", IMAGE, "true"],
        ["--cpus", "nan", IMAGE, "true"],
        ["-m", "900t", IMAGE, "true"],
        ["-u", "nobody-such", IMAGE, "true"],
        ["--network", "no-such-group", IMAGE, "true"],
        ["--name", "a b", IMAGE, "true"],
        ["--lifetime", "99999d", IMAGE, "true"],
    ],
)
def test_bad_input_is_one_line_and_125(node: RunningNode, words: list[str]) -> None:
    """Each is refused by a typed error, on standard error alone, with Docker's code; no sandbox stays."""
    done = dsec(node, "run", *words)
    assert done.returncode == 125, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("dsec: ")
    assert "Traceback" not in done.stderr


def test_life_of_a_sandbox(node: RunningNode) -> None:
    """create, exec, logs, inspect, stats, stop, logs of the stopped, rm: by name, each with its JSON form."""
    made = dsec(node, "create", "--name", "box", "-l", "task=7", IMAGE)
    assert made.returncode == 0, made.stderr
    identity = made.stdout.strip()
    assert dsec(node, "exec", "-i", "box", "cat", input="bytes in").stdout == "bytes in"
    result = json.loads(dsec(node, "exec", "--json", "box", "id", "-un").stdout)
    assert (result["exit_code"], result["stdout"]) == (0, "root\n")
    assert [one["id"] for one in json.loads(dsec(node, "ps", "--json", "-l", "task=7").stdout)] == [identity]
    assert json.loads(dsec(node, "stats", "--json", "box").stdout)[0]["usage"]["pids"] == 0
    assert dsec(node, "rm", "box").returncode == 1
    assert dsec(node, "stop", "box").stdout == "box\n"
    assert dsec(node, "exec", "box", "true").returncode == 125
    assert "bytes in" in dsec(node, "logs", "box").stdout
    known = json.loads(dsec(node, "inspect", "box").stdout)
    assert [entry["state"] for entry in known["story"]] == ["creating", "running", "stopped"]
    assert dsec(node, "rm", "box").returncode == 0
    assert dsec(node, "inspect", "box").returncode == 1


def test_kill_sends_the_main_process_a_signal(node: RunningNode) -> None:
    """Another signal than KILL reaches the main process, whose own code then is the sandbox's."""
    script = "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    name = dsec(node, "run", "-d", IMAGE, "sh", "-c", script).stdout.strip()
    wait_until(lambda: "ready" in dsec(node, "logs", name).stdout, "the program is ready")
    assert dsec(node, "kill", "-s", "USR1", name).returncode == 0
    assert dsec(node, "logs", "-f", name).stdout == "ready\n"
    assert json.loads(dsec(node, "inspect", name).stdout)["info"]["exit_code"] == 5


def test_stop_all_stops_ones_own(node: RunningNode) -> None:
    """``stop --all`` ends every sandbox of the caller's and prints which."""
    names = {dsec(node, "create", IMAGE).stdout.strip() for _ in range(2)}
    assert set(dsec(node, "stop", "--all").stdout.split()) == names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_stops_what_run_made(node: RunningNode, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and a hang-up end the foreground program with its sandbox, and the exit code is 130."""
    words = argv("run", IMAGE, "sh", "-c", "echo ready; sleep 1000")
    with subprocess.Popen(words, env=node.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(20) == 130
    assert node.live_sandboxes() == []


def test_a_background_job_can_be_ended(node: RunningNode) -> None:
    """Started with SIGINT ignored, as a shell's ``&`` does, ``run`` still ends with its sandbox on SIGTERM."""
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *argv("run", IMAGE, "sh", "-c", "echo ready; sleep 1000")]
    with subprocess.Popen(words, env=node.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
    assert node.live_sandboxes() == []


def test_second_interrupt_still_stops(node: RunningNode) -> None:
    """Two interrupts at once leave by the synchronous path, and the sandbox is stopped all the same."""
    words = argv("run", IMAGE, "sh", "-c", "echo ready; sleep 1000")
    with subprocess.Popen(words, env=node.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
    wait_until(lambda: node.live_sandboxes() == [], "the sandbox is stopped")


def test_interrupt_kills_an_exec_not_its_sandbox(node: RunningNode) -> None:
    """Ctrl-C of ``exec`` ends that program; the sandbox lives on."""
    name = dsec(node, "create", IMAGE).stdout.strip()
    words = argv("exec", name, "sh", "-c", "echo ready; sleep 1000")
    with subprocess.Popen(words, env=node.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    known = json.loads(dsec(node, "inspect", name).stdout)
    assert known["info"]["state"] == "running"
    assert [one["ended"] for one in known["execs"]] == ["cancelled"]
    dsec(node, "stop", name)


def test_closed_pipe_is_quiet(node: RunningNode) -> None:
    """``dsec run … | head -1`` ends without a traceback, and its sandbox with it."""
    words = argv("run", IMAGE, "sh", "-c", "while :; do echo line; done")
    with subprocess.Popen(
        words, env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == ""


def complete(node: RunningNode, line: str) -> list[str]:
    """What the shell would offer at the end of the line."""
    asked = {"_DSEC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    words = [sys.executable, "-c", "import sys; sys.argv[0] = 'dsec'; from dsec.cli.main import main; main()"]
    done = subprocess.run(words, env=node.environment | asked, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_completion_knows_commands_sandboxes_and_images(node: RunningNode) -> None:
    """Commands and options by their beginning; sandboxes by name or ID; images; nothing of a node that is down."""
    assert complete(node, "dsec im") == ["images", "image"] and "--lifetime" in complete(node, "dsec run --life")
    made = dsec(node, "create", "--name", "completed-one", IMAGE).stdout.strip()
    try:
        assert complete(node, "dsec exec comp") == ["completed-one"]
        assert complete(node, f"dsec stop {made[:-3]}") == [made]
        assert complete(node, "dsec run dsec/") == [IMAGE]
        down = {"DSEC_URL": "http://127.0.0.1:1", "DSEC_TOKEN": "x"}
        node_down = type("Down", (), {"environment": node.environment | down})
        assert complete(node_down, "dsec exec comp") == []  # type: ignore[arg-type]
    finally:
        dsec(node, "rm", "-f", made)


def test_status_and_doctor_speak(node: RunningNode) -> None:
    """The node at a glance, and the machine: nothing that a node needs is missing where tests run."""
    status = json.loads(dsec(node, "status", "--json").stdout)
    assert status["node"] == node.paths.name
    findings = json.loads(dsec(node, "doctor", "--json").stdout)["findings"]
    assert {one["kind"] for one in findings} == {"machine", "tool", "program", "kernel"}
    # A program in the kernel could tell more; nothing needs it.
    assert {one["name"] for one in findings if not one["present"]} <= {"BPF LSM"}


def test_layer_build(node: RunningNode, tmp_path: Path) -> None:
    """A directory of one's own becomes a workspace of a sandbox."""
    (tmp_path / "hello.txt").write_text("from a layer\n")
    built = dsec(node, "layer", "build", str(tmp_path), "workspace/cli:1", "--at", "/srv")
    assert built.returncode == 0, built.stderr
    words = ("run", "--rm", "--workspace", "workspace/cli:1", IMAGE, "cat", "/srv/hello.txt")
    assert dsec(node, *words).stdout == "from a layer\n"


def test_no_node_says_how_to_get_one(node: RunningNode) -> None:
    """Without a node a command says ``dsec up``."""
    done = subprocess.run(
        argv("ps"), env=node.environment | {"DSEC_NODE": "none"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "dsec up" in done.stderr


def test_events(node: RunningNode) -> None:
    """`dsec events` shows what was refused or met, of the kinds that are asked for, as lines or as JSON lines."""
    made = dsec(node, "create", "--network", "open", IMAGE).stdout.strip()
    try:
        dsec(node, "exec", made, "umount", "/proc/sys")
        dsec(node, "exec", "--timeout", "0.2s", made, "sleep", "60")
        told = [json.loads(line) for line in dsec(node, "events", made, "--json").stdout.splitlines()]
        assert [(each["kind"], each["reason"], each["sandbox_id"]) for each in told] == [
            ("syscall", "mount", made),
            ("limit", "time", made),
        ]
        (line,) = dsec(node, "events", made, "--kind", "limit").stdout.splitlines()
        assert f"limit time - exec {told[1]['exec_id']}" in line
        wrong = dsec(node, "events", made, "--kind", "nonsense")
        assert wrong.returncode != 0 and "nonsense" in wrong.stderr
    finally:
        dsec(node, "rm", "-f", made)
