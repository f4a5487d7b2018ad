"""The command line itself: what belongs to dsec and what to the program, and the options every command has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dsec.api.images import ImageProgress
from dsec.cli.main import app
from dsec.errors import ExecutableNotFound, ImageNotFound, NotFound

runner = CliRunner()


class FakeClient:
    """Notes what it is asked for; its one sandbox prints and exits with 3."""

    def __init__(self) -> None:
        self.args: Any = None
        self.error: Exception | None = None
        self.here = True
        self.imported: list[tuple[str, str]] = []
        self.images = SimpleNamespace(get=self._get, import_=self._import)

    async def _get(self, reference: str) -> None:
        if not self.here:
            raise ImageNotFound(f"no image {reference}")

    async def _import(self, source: str, *, pull: str, on_progress: Callable[[ImageProgress], None]) -> None:
        self.imported.append((source, pull))
        on_progress(ImageProgress(phase="download", done=1, total=2))

    async def sandbox(self, args: Any) -> Any:
        """Note the request."""
        self.args = args
        if self.error is not None:
            raise self.error
        return SimpleNamespace(id="sb-local-x")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A client in place of the real one, for ``run -d`` and ``create``."""
    fake = FakeClient()

    def with_client(body: Callable[[Any], Awaitable[Any]]) -> Any:
        return asyncio.run(_run(body))

    async def _run(body: Callable[[Any], Awaitable[Any]]) -> Any:
        return await body(fake)

    monkeypatch.setattr("dsec.cli.commands.run.with_client", with_client)
    return fake


def commands() -> dict[str, Any]:
    """Every command by its whole name, hidden ones too."""
    found: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {sub}": one for sub, one in inner.items()}
    return found


def test_all_commands_of_the_issue_are_there() -> None:
    """The names that users are promised."""
    words = "run create exec shell attach ps ls stop rm kill "
    words += "logs inspect stats images pull up down restart status doctor demo"
    promised = set(words.split())
    nouns = ["image import", "image build", "image ls", "image show", "image rm", "layer build", "token create"]
    assert promised | set(nouns) <= set(commands())


@pytest.mark.parametrize("name", sorted(set(commands()) - {"shell", "attach"}))
def test_every_command_speaks_json(name: str) -> None:
    """``--json`` everywhere but where a person sits at a terminal."""
    options = {option for parameter in commands()[name].params for option in parameter.opts}
    assert "--json" in options


def test_options_after_the_image_are_the_programs(client: FakeClient) -> None:
    """No ``--`` is needed: what follows the image, dsec's own options included, goes to the program."""
    done = runner.invoke(app, ["run", "-d", "-m", "512m", "img", "pytest", "-q", "-m", "slow", "--rm", "--json"])
    assert (done.exit_code, done.stdout) == (0, "sb-local-x\n")
    assert client.args.command == ["pytest", "-q", "-m", "slow", "--rm", "--json"]
    assert client.args.memory_mib == 512


def test_dockers_flags_become_fields(client: FakeClient) -> None:
    """The flags that Docker has mean what they mean there."""
    flags = "-e A=1 -w /srv -u 1000:1000 --name n1 --cpus 0.5 --network none -l task=7 --pids-limit 64 --shm-size 1m"
    done = runner.invoke(app, ["run", "-d", *flags.split(), "img"])
    assert done.exit_code == 0, done.stderr
    made = client.args
    assert (made.env, made.workdir, made.user, made.name) == ({"A": "1"}, "/srv", "1000:1000", "n1")
    assert (made.cpu, made.network, made.labels, made.pids, made.shm_mib) == (0.5, "none", {"task": "7"}, 64, 1)
    assert made.command == "image"


def test_create_has_no_main_process(client: FakeClient) -> None:
    """``create`` is ``run -d`` without a program."""
    assert runner.invoke(app, ["create", "img"]).exit_code == 0
    assert client.args.command is None


def test_missing_image_is_pulled_in_sight(client: FakeClient) -> None:
    """A pull's progress goes to standard error, its ID alone to standard output; what is here is not pulled."""
    client.here = False
    made = runner.invoke(app, ["create", "python:3.12"])
    assert (made.stdout, client.imported) == ("sb-local-x\n", [("docker://python:3.12", "missing")])
    assert "pulling python:3.12: download" in made.stderr
    client.here = True
    runner.invoke(app, ["run", "-d", "--pull", "always", "python:3.12"])
    assert client.imported[1:] == [("docker://python:3.12", "always")] and client.args.pull == "missing"
    for words in (["create", "python:3.12"], ["create", "--pull", "never", "x"], ["create", "dsec/none:1"]):
        runner.invoke(app, words)
    assert len(client.imported) == 2


@pytest.mark.parametrize(
    ("error", "code"), [(NotFound("no image", remedy="Pull it"), 125), (ExecutableNotFound("no program"), 127)]
)
def test_errors_are_exit_codes(client: FakeClient, error: Exception, code: int) -> None:
    """A failed create is one line on standard error, Docker's code, and nothing on standard output."""
    client.error = error
    done = runner.invoke(app, ["run", "-d", "img", "x"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(f"dsec: {error.args[0]}\n")


def test_errors_as_json(client: FakeClient) -> None:
    """With ``--json`` the error is an object, on standard error still."""
    client.error = NotFound("no image")
    done = runner.invoke(app, ["create", "--json", "img"])
    assert json.loads(done.stderr)["error"]["code"] == "not_found"


@pytest.mark.parametrize("words", [["run", "-it", "img"], ["exec", "-it", "sb", "sh"], ["shell", "sb"]])
def test_a_terminal_is_refused_without_one(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's words and Docker's code, before anything is made."""
    monkeypatch.setattr("os.isatty", lambda _: False)
    done = runner.invoke(app, words)
    assert done.exit_code == 1
    assert "the input device is not a TTY" in done.stderr


def test_keys_that_do_not_exist_are_refused() -> None:
    """A misspelt sequence does not leave the user without one."""
    done = runner.invoke(app, ["exec", "--detach-keys", "ctrl-1", "sb", "sh"])
    assert done.exit_code == 125 and "ctrl-1" in done.stderr


@pytest.mark.parametrize("words", [["stop"], ["stop", "--all", "x"], ["stop", "--all", "-l", "a=b"]])
def test_stop_needs_one_way_to_say_whom(words: list[str]) -> None:
    """Neither nothing nor two ways at once."""
    assert runner.invoke(app, words).exit_code == 1
