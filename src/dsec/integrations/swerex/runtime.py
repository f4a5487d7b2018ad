"""The runtime: commands, files and sessions of one sandbox."""

from __future__ import annotations

import asyncio
import io
import logging
import posixpath
from pathlib import Path
from typing import TypeVar

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

import dsec
from dsec.api.types import Ended
from dsec.errors import DSecError
from dsec.integrations.swerex.shell import Shell
from dsec.sync.portal import apart

__all__ = ["DsecRuntime"]

T = TypeVar("T")
_MOST_OUTPUT = 64 * 1024 * 1024


class DsecRuntime(AbstractRuntime):
    """SWE-ReX's runtime over a sandbox.

    Sessions are interactive bash at a terminal, as SWE-ReX's own are. What SWE-ReX raises for a command, this raises;
    a fault of the platform is raised as it is (SandboxGone, OutcomeUnknown, …) and never an exit code. Everything
    runs in dsec's background loop, so calls may come from one event loop after another.
    """

    def __init__(self, sandbox: dsec.Sandbox, *, logger: logging.Logger | None = None) -> None:
        self.sandbox = sandbox
        self.logger = logger or get_logger("rex-runtime")
        self._sessions: dict[str, Shell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox runs; an answer too, when that cannot be known within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                info = await apart(self.sandbox.info())
        except (DSecError, TimeoutError) as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        message = "" if info.state == "running" else f"the sandbox is {info.state}: {info.cause}"
        return IsAliveResponse(is_alive=info.state == "running", message=message)

    # Sessions

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Start a shell and source the request's files. Raises SessionExistsError."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        shell = self._sessions[request.session] = Shell(self.sandbox)
        try:
            output = await apart(shell.start(request.startup_source, request.startup_timeout))
        except BaseException:
            del self._sessions[request.session]
            await apart(shell.close())
            raise
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        """Run a command, or interrupt one.

        Raises SessionDoesNotExistError, BashIncorrectSyntaxError, CommandTimeoutError (the command goes on),
        NoExitCodeError, and with ``check="raise"`` NonZeroExitCodeError.
        """
        shell = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await apart(shell.interrupt(action.expect, action.timeout, action.n_retry))
        if action.is_interactive_command or action.is_interactive_quit:
            return await apart(shell.interact(action))
        await self._check_syntax(action.command)
        observed = await apart(shell.run(action.command, action.expect, action.timeout))
        if action.check == "ignore":
            observed.exit_code = None
        elif action.check == "raise" and observed.exit_code != 0:
            raise NonZeroExitCodeError(_failed(action.command, action.error_msg, observed.exit_code, observed.output))
        return observed

    async def close_session(self, request: CloseSessionRequest) -> CloseBashSessionResponse:
        """End a shell and what it runs. Raises SessionDoesNotExistError."""
        shell = self._session(request.session)
        del self._sessions[request.session]
        await apart(shell.close())
        return CloseBashSessionResponse()

    def _session(self, name: str) -> Shell:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def _check_syntax(self, command: str) -> None:
        checked = await apart(self.sandbox.exec("/usr/bin/env", "bash", "-n", stdin=command + "\n"))
        if not checked.ok:
            raise BashIncorrectSyntaxError(
                f"Error (exit code {checked.exit_code}) while checking bash command \n{command!r}\n{checked.stderr}",
                extra_info={"bash_stdout": checked.stdout, "bash_stderr": checked.stderr},
            )

    # Commands

    async def execute(self, command: Command) -> CommandResponse:
        """Run a command by itself, as ``subprocess.run`` would.

        ``env`` comes on top of the sandbox's own. Raises CommandTimeoutError (all of it is killed), with ``check``
        NonZeroExitCodeError, FileNotFoundError and PermissionError for a program that cannot be run.
        """
        words = [command.command] if isinstance(command.command, str) else command.command
        argv = ["/bin/sh", "-c", *words] if command.shell else words
        result = await apart(
            self.sandbox.exec(
                *argv, env=command.env, cwd=await self._absolute(command.cwd), timeout_s=command.timeout, grace_s=0,
                merge_stderr=command.merge_output_streams, max_output_bytes=_MOST_OUTPUT,
            )
        )  # fmt: skip
        if result.ended is Ended.TIMEOUT:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        code = result.exit_code if result.exit_code is not None else -(result.signal or 9)
        stdout, stderr = (
            data.decode(errors="backslashreplace") for data in (result.stdout_bytes, result.stderr_bytes)
        )
        if command.check and code != 0:
            raise NonZeroExitCodeError(_failed(command.command, command.error_msg, code, f"{stdout}\n{stderr}"))
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)

    async def _absolute(self, cwd: str | None) -> str | None:
        if cwd is None or cwd.startswith("/"):
            return cwd
        info = await apart(self.sandbox.info())
        return posixpath.join(info.workdir or "/", cwd)

    # Files

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """A text file. Raises Python's own errors."""
        data = await apart(self.sandbox.files.read(request.path))
        text = io.TextIOWrapper(io.BytesIO(data), encoding=request.encoding or "utf-8", errors=request.errors)
        return ReadFileResponse(content=text.read())

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file, making its directories. Raises Python's own errors."""
        await apart(self.sandbox.files.write(request.path, request.content, parents=True))
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or a directory of this machine into the sandbox, where a directory takes it in."""
        source, target = Path(request.source_path), request.target_path
        if await asyncio.to_thread(source.is_dir):
            await apart(self.sandbox.files.upload(source, target, parents=True))
            return UploadResponse()
        data, mode = await asyncio.to_thread(_data_and_mode, source)
        if (await apart(self.sandbox.exec("test", "-d", target))).ok:
            target = posixpath.join(target, source.name)
        await apart(self.sandbox.files.write(target, data, mode=mode))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End every session."""
        sessions, self._sessions = self._sessions, {}
        for shell in sessions.values():
            await apart(shell.close())
        return CloseResponse()


def _data_and_mode(file: Path) -> tuple[bytes, int]:
    return file.read_bytes(), file.stat().st_mode & 0o777


def _failed(command: object, why: str, code: int | None, output: str) -> str:
    text = f"Command {command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    return f"{why}: {text}" if why else text
