"""The fixtures that SWE-ReX's own tests ask for, over a dsec sandbox in place of its server."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    UploadRequest,
)

import dsec
import dsec.sync
from dsec.integrations.swerex import DsecDeployment, DsecRuntime

TIMEOUT_S = 30.0


class _Action(BashAction):
    """What their tests call A."""

    timeout: float | None = TIMEOUT_S


class _Command(Command):
    """What their tests call C."""

    timeout: float | None = TIMEOUT_S


async def provide(runtime: DsecRuntime) -> None:
    """What their tests find on the machine where they usually run: ``python``, and ``less``."""
    tools = pathlib.Path(__file__).parents[3] / "tools"  # this file is copied to build/compat/swe_rex/suite
    less = shutil.which("less", path=f"{os.environ['PATH']}:{tools}/usr/bin:{tools}/bin")
    assert less is not None, "less is missing: scripts/setup-tests.sh"
    await runtime.upload(UploadRequest(source_path=less, target_path="/usr/local/bin/less"))
    await runtime.execute(Command(command=["ln", "-s", "/usr/bin/python3", "/usr/local/bin/python"], check=True))


@pytest.fixture
async def remote_runtime() -> AsyncIterator[DsecRuntime]:
    """A runtime over a sandbox of the test's own."""
    deployment = DsecDeployment(image="dsec/debian:12")
    await deployment.start()
    try:
        await provide(deployment.runtime)
        yield deployment.runtime
    finally:
        await deployment.stop()


@pytest.fixture
async def runtime_with_default_session(remote_runtime: DsecRuntime) -> AsyncIterator[DsecRuntime]:
    """The same with a session."""
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


@pytest.fixture
def tmp_path(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[pathlib.Path]:
    """A directory that is, for their tests, one and the same here and in the sandbox.

    Their server runs on the tests' own machine: some write a file through the runtime and read it here, or the other
    way round. What is written here goes to both, what is read here comes from the sandbox.
    """
    if "remote_runtime" not in request.fixturenames and "runtime_with_default_session" not in request.fixturenames:
        yield tmp_path
        return
    name = "remote_runtime" if "remote_runtime" in request.fixturenames else "runtime_with_default_session"
    runtime: DsecRuntime = request.getfixturevalue(name)
    sandbox = dsec.sync.DSecClient().attach(runtime.sandbox.id)

    class SharedPath(type(pathlib.Path())):  # type: ignore[misc]
        def write_text(self, data: str, *args: Any, **options: Any) -> int:
            sandbox.files.write(str(self), data, parents=True)
            return int(super().write_text(data, *args, **options))

        def read_text(self, *args: Any, **options: Any) -> str:
            return bytes(sandbox.files.read(str(self))).decode()

    sandbox.exec("mkdir", "-p", str(tmp_path), check=True)
    yield SharedPath(tmp_path)
