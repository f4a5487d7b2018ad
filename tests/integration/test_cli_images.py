"""The command line's images: pull, list, show, import, run as the image says, remove; and Docker's ways of asking."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.images.samples import Member, docker_archive, layer_archive, oci_layout
from dsec.testing.node import RunningNode, private_node

from .images.registries import docker_registry, free_port, push
from .test_cli import IMAGE, argv, dsec

pytestmark = pytest.mark.node

LAYER = layer_archive([Member(name="hello", data=b"hi\n")])


@pytest.fixture(scope="module")
def port() -> int:
    """Where this module's registry listens."""
    return free_port()


@pytest.fixture(scope="module")
def node(store: Path, port: int) -> Iterator[RunningNode]:
    """A node with one insecure registry on loopback."""
    with private_node(store, settings=f"[registries]\ninsecure = ['127.0.0.1:{port}']\n") as running:
        yield running


def test_pull_list_show_remove(node: RunningNode, port: int, tmp_path: Path) -> None:
    """From a registry by ``pull``; shown by images and image show; gone after image rm; a second rm says so."""
    with docker_registry(tmp_path / "server", port=port) as registry:
        push(oci_layout(tmp_path / "app", [LAYER], {"Cmd": ["/x"], "Env": ["A=b"]}), registry, "team/app:1")
        reference = f"{registry}/team/app:1"
        pulled = dsec(node, "pull", reference)
        assert pulled.returncode == 0, pulled.stderr
        assert dsec(node, "pull", f"{registry}/team/none:1").returncode == 1
    listed = json.loads(dsec(node, "images", "--json").stdout)
    assert {IMAGE, reference} <= {one["reference"] for one in listed}
    shown = json.loads(dsec(node, "image", "show", reference).stdout)
    assert shown["config"]["cmd"] == ["/x"] and shown["config"]["env"] == ["A=b"]
    assert dsec(node, "image", "rm", reference).returncode == 0
    again = dsec(node, "image", "rm", reference)
    assert again.returncode == 1 and again.stderr.startswith("dsec: ") and "Traceback" not in again.stderr


def test_several_at_once(node: RunningNode, port: int, tmp_path: Path) -> None:
    """Each is told when it is there, with its own progress; one that cannot be had is an error beside the others."""
    with docker_registry(tmp_path / "server", port=port) as registry:
        for name in ("one", "two"):
            push(oci_layout(tmp_path / name, [LAYER], {"Env": [f"N={name}"]}), registry, f"side/{name}:1")
        names = [f"{registry}/side/{name}:1" for name in ("one", "none", "two")]
        pulled = dsec(node, "image", "pull", *names)
        assert pulled.returncode == 1 and sorted(pulled.stdout.split()) == [names[0], names[2]]
        for name in (names[0], names[2]):
            assert f"pulling {name}: done" in pulled.stderr
        assert pulled.stderr.count("dsec: ") == 1 and "side/none" in pulled.stderr
        told = json.loads(dsec(node, "pull", "--json", names[0], names[2]).stdout)
        assert sorted(one["reference"] for one in told) == [names[0], names[2]]


def test_import_of_files(node: RunningNode, tmp_path: Path) -> None:
    """docker-archive: and oci: are files of the caller's; a cut archive is one line and code 1."""
    archive = docker_archive(tmp_path / "a.tar", [LAYER], name="team/file:1")
    assert dsec(node, "image", "import", f"docker-archive:{archive}").returncode == 0
    assert (
        dsec(
            node, "image", "import", f"oci:{oci_layout(tmp_path / 'l', [LAYER])}", "--as", "team/layout:1"
        ).returncode
        == 0
    )
    names = [one["reference"] for one in json.loads(dsec(node, "images", "--json").stdout)]
    assert {"docker.io/team/file:1", "docker.io/team/layout:1"} <= set(names)
    (tmp_path / "cut.tar").write_bytes(archive.read_bytes()[:700])
    cut = dsec(node, "image", "import", f"docker-archive:{tmp_path / 'cut.tar'}", "--as", "team/cut:1")
    assert cut.returncode == 1 and cut.stderr.count("\n") <= 2 and "Traceback" not in cut.stderr


def test_dockers_flags(node: RunningNode) -> None:
    """The flags that Docker users type, short, long, joined and with =, before the image; none is taken after it."""
    words = (
        "run", "--rm", "-e", "A=1", "--env", "B=2", "--env=C=3", "-w", "/usr", "-u", "1000:1000", "--name", "flags",
        "-m", "256m", "--cpus", "1.5", "--network", "none", "-l", "k=v", "--label", "x=y", IMAGE,
        "sh", "-c", "echo $A$B$C $PWD $(id -u) $0 $@; hostname", "-e", "--rm", "--",
    )  # fmt: skip
    done = dsec(node, *words)
    assert (done.returncode, done.stdout) == (0, "123 /usr 1000 -e --rm --\nflags\n"), done.stderr


def test_env_from_the_callers(node: RunningNode) -> None:
    """``-e NAME`` without a value passes the caller's own, as Docker does."""
    done = subprocess.run(
        argv("run", "--rm", "-e", "MINE", IMAGE, "sh", "-c", "echo $MINE"),
        env=node.environment | {"MINE": "from outside"}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "from outside\n", done.stderr


def test_detached_logs_follow(node: RunningNode) -> None:
    """``run -d`` prints the ID and returns; ``logs -f`` follows to the end; the tombstone keeps the streams apart."""
    name = dsec(node, "run", "-d", IMAGE, "sh", "-c", "echo one; echo two >&2; exit 3").stdout.strip()
    followed = dsec(node, "logs", "-f", name)
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "one\n", "two\n")
    assert json.loads(dsec(node, "inspect", name).stdout)["info"]["exit_code"] == 3
    assert dsec(node, "rm", name).returncode == 0


def test_binary_output_and_input(node: RunningNode) -> None:
    """Bytes pass through unchanged in both directions."""
    data = bytes(range(256)) * 2000
    name = dsec(node, "create", IMAGE).stdout.strip()
    words = argv("exec", "-i", name, "cat")
    done = subprocess.run(words, env=node.environment, input=data, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == data
    assert dsec(node, "rm", "-f", name).returncode == 0
