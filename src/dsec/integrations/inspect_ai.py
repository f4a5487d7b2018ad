"""Sandboxes for Inspect: the provider ``dsec``, found through the entry point of this package.

``Task(sandbox="dsec")`` runs each sample in ``dsec/debian:12``; ``sandbox=("dsec", "python:3.12")`` names an image;
``SandboxEnvironmentSpec("dsec", DsecSandboxConfig(...))`` says more. A sandbox that is lost ends its sample with an
error, never as a score (docs/decisions/0035): neither the model nor the scorer sees a platform fault.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel

import dsec
from dsec.api.types import Ended
from dsec.errors import (
    DeadlineExceeded,
    Denied,
    DSecError,
    ExecutableNotFound,
    InvalidArgument,
    NotFound,
)

__all__ = ["DsecSandboxConfig", "DsecSandboxEnvironment"]

IMAGE = "dsec/debian:12"
LABELS = {"integration": "inspect-ai"}
"""Every sandbox of this provider has it, beside those of its task and sample."""
_MOST_OUTPUT = 64 * 1024 * 1024
"""More is not kept of one stream by a node."""
_NOT_STARTED = 126
_NOT_FOUND = 127


class DsecSandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """What a sample's sandbox is made of: fields of ``dsec.SandboxArgs``, under the same names.

    A sandbox may idle as long as a model thinks; ``lease_s`` ends those of an evaluation that died, and
    ``lifetime_s`` any.
    """

    image: str = IMAGE
    cpu: float = 2
    memory_mib: float = 1024
    disk_mib: float = 10240
    pids: int = 4096
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    network: str | dict[str, bool] = "none"
    lifetime_s: float = 14400
    profile: str = "default"
    lease_s: float = 60
    """How long the sandboxes stay when their evaluation gives no sign of life."""
    deadline_s: float = 600
    """How long a create may wait for the image or for room on the node."""

    def __hash__(self) -> int:
        """Inspect keeps configurations as keys."""
        return hash(self.model_dump_json())

    def args(self, labels: dict[str, str]) -> dsec.SandboxArgs:
        """The same for the SDK."""
        fields = self.model_dump(exclude={"deadline_s", "lease_s"})
        return dsec.SandboxArgs(**fields, idle_timeout_s=self.lifetime_s, labels=labels)


_client = dsec.DSecClient()
"""One for the process: it connects at first use, and anew for each event loop."""
_jobs: dict[tuple[asyncio.AbstractEventLoop, DsecSandboxConfig], dsec.Job] = {}
"""What holds the leases of this process's evaluations, by the configuration that a task brought."""


@sandboxenv(name="dsec")
class DsecSandboxEnvironment(SandboxEnvironment):
    """One dsec sandbox of one sample.

    Beside what Inspect asks of ``exec``: a timeout kills the whole tree and carries the output until then; a command
    is never run a second time, so ``timeout_retry`` changes nothing; ``input`` may have any size; text that is not
    UTF-8 comes with replacement characters.
    """

    def __init__(self, sandbox: dsec.Sandbox, workdir: str) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._workdir = workdir

    # An evaluation, and a sample's sandbox

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Begin the lease under which the samples' sandboxes live."""
        wanted = _config_of(config)
        place = asyncio.get_running_loop(), wanted
        if place not in _jobs:
            with _errors_that_end_the_sample():
                _jobs[place] = await _client.job(f"inspect-{secrets.token_hex(8)}", lease_s=wanted.lease_s).open()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """Stop whatever is left; without ``cleanup`` say what is, and let it live as long as its lifetime."""
        wanted = _config_of(config)
        job = _jobs.pop((asyncio.get_running_loop(), wanted), None)
        if job is None:
            return
        if cleanup:
            await job.stop()
            return
        left = [info.id async for info in job.find()]
        await job.detach()
        if left:
            kept = await _client.job(job.name, lease_s=wanted.lifetime_s).open()
            await kept.detach()
            print(f"dsec sandboxes not cleaned up: {' '.join(left)}\nEnd them: inspect sandbox cleanup dsec")  # noqa: T201

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A new sandbox, under the name ``default``."""
        wanted = _config_of(config)
        sample = str(metadata.get("__sample_id__", ""))
        labels = LABELS | {"inspect-task": task_name[:200], "inspect-sample": sample[:200]}
        holder = _jobs.get((asyncio.get_running_loop(), wanted), _client)
        with _errors_that_end_the_sample():
            sandbox = await holder.sandbox(wanted.args(labels), deadline_s=wanted.deadline_s)
            info = await sandbox.info()
        return {"default": cls(sandbox, info.workdir or "/")}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Stop them, confirmed; of one that is gone already that is no error."""
        for environment in environments.values():
            await environment.as_type(DsecSandboxEnvironment).sandbox.stop()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """``inspect sandbox cleanup dsec [ID]``: stop this principal's sandboxes of this provider, or that one.

        Raises NotFound for an ID that is not one of them.
        """
        async with dsec.DSecClient() as client:
            if id is None:
                ended = len((await client.stop_all(labels=LABELS)).stopped)
            else:
                sandbox = await client.get(id)
                if not sandbox.labels.items() >= LABELS.items():
                    raise NotFound(f"{id} is no sandbox of an Inspect evaluation", sandbox_id=sandbox.id)
                await sandbox.stop()
                ended = 1
        print(f"Stopped {ended} dsec {'sandbox' if ended == 1 else 'sandboxes'}")  # noqa: T201 - a command's answer

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A configuration as a log has it."""
        return DsecSandboxConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """No limit: what a node cannot hold yet waits in its queue."""
        return None

    def default_polling_interval(self) -> float:
        """Seconds between looks at a service; an exec costs milliseconds."""
        return 0.2

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets in. Raises ConnectionError when it does not run."""
        try:
            info = await self.sandbox.info()
        except DSecError as error:
            raise ConnectionError(str(error)) from error
        if info.state != "running":
            raise ConnectionError(f"sandbox {self.sandbox.id} is {info.state}")
        as_user = f" --user {user}" if user else ""
        return SandboxConnection(type="dsec", command=f"dsec exec -it{as_user} {self.sandbox.id} /bin/sh -l")

    # What runs in it

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. A program, user or directory that does not exist is its failure (127, 126), not an error."""
        if any("\0" in word for word in cmd):
            raise ValueError("embedded null byte")  # the words by which Inspect knows the model's own mistake
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            with _errors_that_end_the_sample():
                result = await self.sandbox.exec(
                    *cmd, stdin=input, cwd=self._path(cwd or ""), env=env, user=user, timeout_s=timeout,
                    max_output_bytes=min(limit, _MOST_OUTPUT),
                )  # fmt: skip
        except ExecutableNotFound as error:
            return ExecResult(False, _NOT_FOUND, "", f"{error.message}\n")
        except InvalidArgument as error:
            if error.phase not in ("user", "cwd"):
                raise
            return ExecResult(False, _NOT_STARTED, "", f"{error.message}\n")
        if result.ended is Ended.TIMEOUT:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            late.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]
            raise late
        if result.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout + result.stderr
            )
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 9)
        return ExecResult(result.ok, code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, making its directories. Raises Python's own errors, which name it."""
        with _errors_that_end_the_sample():
            await self.sandbox.files.write(self._path(file), contents, parents=True)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """A file's contents. Raises Python's own errors, which name it, and OutputLimitExceededError."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _errors_that_end_the_sample():
            data = await self.sandbox.files.read(self._path(file), limit=limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode("utf-8") if text else data

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)


def _config_of(config: SandboxEnvironmentConfigType | None) -> DsecSandboxConfig:
    if config is None:
        return DsecSandboxConfig()
    if isinstance(config, str):
        return DsecSandboxConfig(image=config)
    if isinstance(config, DsecSandboxConfig):
        return config
    raise InvalidArgument(
        f"the dsec sandbox is configured by an image's name or a DsecSandboxConfig, not by {type(config).__name__}",
        remedy='For example sandbox=("dsec", "python:3.12")',
    )


@contextmanager
def _errors_that_end_the_sample() -> Iterator[None]:
    """Let no error of the platform look like one of the command.

    Inspect shows TimeoutError and PermissionError to the model as a tool's failure and goes on; a token that is
    refused and a deadline of ours are such by type. SandboxGone, OutcomeUnknown and NodeError end the sample as they
    are.
    """
    try:
        yield
    except (Denied, DeadlineExceeded) as error:
        raise RuntimeError(str(error)) from error
