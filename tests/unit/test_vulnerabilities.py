"""``make audit``: what it asks of a database, and the code for each of its answers."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("audit", CHECKOUT / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Database(BaseHTTPRequestHandler):
    """Knows something of one package; answers half where it is told to."""

    asked: list[Any]
    bad: str | None
    broken: bool

    def do_POST(self) -> None:
        """Questions in a batch."""
        queries = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        self.asked.extend(queries)
        results = [{"vulns": [{"id": "X-1"}]} if each["package"]["name"] == self.bad else {} for each in queries]
        body = json.dumps({"results": results[: -1 if self.broken else None]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def database() -> Iterator[tuple[type[Database], str]]:
    """A database on this machine, and where it is."""
    kind = type("One", (Database,), {"asked": [], "bad": None, "broken": False})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield kind, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_locked_package_is_asked_about(audit: ModuleType, database: tuple[type[Database], str]) -> None:
    """Of Python and of Rust, with their versions, in batches; none of dsec's own. Nothing known: 0."""
    kind, url = database
    assert audit.main(CHECKOUT, url) == audit.NOTHING == 0
    asked = {(each["package"]["ecosystem"], each["package"]["name"]) for each in kind.asked}
    assert {("PyPI", "uvicorn"), ("PyPI", "msgspec"), ("crates.io", "hyper"), ("crates.io", "rustls")} <= asked
    assert not any(name.startswith("dsec") for _, name in asked)
    assert all(each["version"] for each in kind.asked)


def test_what_is_known_is_said(
    audit: ModuleType, database: tuple[type[Database], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each package, and 1."""
    kind, url = database
    kind.bad = "hyper"
    assert audit.main(CHECKOUT, url) == audit.KNOWN == 1
    assert "crates.io hyper " in (said := capsys.readouterr().out) and "X-1" in said


def test_no_database_is_no_answer(
    audit: ModuleType, database: tuple[type[Database], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Unreachable or answering by halves: one sentence and 3, never 0. Without lock files: 2."""
    kind, url = database
    kind.broken = True
    assert audit.main(CHECKOUT, url) == audit.UNREACHABLE == 3
    assert audit.main(CHECKOUT, "http://127.0.0.1:1") == audit.UNREACHABLE
    assert all(line.endswith("nothing was audited") for line in capsys.readouterr().out.splitlines())
    assert audit.main(CHECKOUT / "docs", url) == audit.UNREADABLE == 2
