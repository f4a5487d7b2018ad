"""mini-swe-agent in dsec: ``environment_class: dsec.integrations.minisweagent.DsecEnvironment``.

Its own Docker environment works as well, with the executable set to ``dsec`` (``MSWEA_DOCKER_EXECUTABLE=dsec``). This
one makes no process for each command, kills what a timeout ends, and never shows the model a fault of the platform.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

import dsec
import dsec.sync
from dsec.api.types import Ended
from dsec.errors import CommandError, ExecutableNotFound, InvalidArgument

__all__ = ["DsecEnvironment", "DsecEnvironmentConfig"]

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_NOT_FOUND = 127
_NOT_STARTED = 126


class DsecEnvironmentConfig(BaseModel, extra="forbid"):
    """Fields of mini-swe-agent's Docker environment that mean something here, and of ``dsec.SandboxArgs``."""

    image: str = "dsec/debian:12"
    cwd: str = "/"
    """Working directory of commands; made where the image lacks it."""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    """Variables passed on from the agent's own environment where they are set there; ``env`` goes before them."""
    timeout: int = 30
    """Seconds that a command may take."""
    interpreter: list[str] = ["bash", "-lc"]
    """What runs a command, which is its last argument."""
    user: str | None = None
    cpu: float = 2
    memory_mib: float = 1024
    disk_mib: float = 10240
    pids: int = 4096
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    lifetime_s: float = 7200
    deadline_s: float = 600
    """Seconds that a create may wait for the image or for room on the node."""


class DsecEnvironment:
    """One sandbox, for one agent.

    A timeout is told to the model with the output until then. What the model got wrong (a program or directory that
    does not exist) is told as a shell would. Everything else, SandboxGone above all, is raised and ends the run: the
    trajectory has the error's name as its exit status and no submission.
    """

    def __init__(self, *, config_class: type[DsecEnvironmentConfig] = DsecEnvironmentConfig, **fields: Any) -> None:
        self.config = config_class(**fields)
        asked = self.config
        self._client = dsec.sync.DSecClient()
        self._sandbox: dsec.sync.Sandbox | None = self._client.sandbox(
            dsec.SandboxArgs(
                asked.image, workdir=asked.cwd, user=asked.user, cpu=asked.cpu, memory_mib=asked.memory_mib,
                disk_mib=asked.disk_mib, pids=asked.pids, workspace=asked.workspace, toolkits=asked.toolkits,
                labels={"integration": "mini-swe-agent"} | asked.labels, lifetime_s=asked.lifetime_s,
                idle_timeout_s=asked.lifetime_s,
            ),
            deadline_s=asked.deadline_s,
        )  # fmt: skip

    @property
    def sandbox(self) -> dsec.sync.Sandbox:
        """The sandbox. Raises InvalidArgument after ``cleanup``."""
        if self._sandbox is None:
            raise InvalidArgument("this environment was cleaned up")
        return self._sandbox

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run ``action["command"]``: both output streams in the order they were written, and the exit code.

        Raises Submitted when the command submits, and the platform's errors as they are.
        """
        limit = timeout or self.config.timeout
        try:
            result = self.sandbox.exec(
                *self.config.interpreter, action.get("command", ""), cwd=cwd or self.config.cwd,
                env=self._environment(), timeout_s=limit, grace_s=0, merge_stderr=True,
            )  # fmt: skip
        except (CommandError, InvalidArgument) as error:
            if isinstance(error, InvalidArgument) and error.phase not in ("user", "cwd"):
                raise
            code = _NOT_FOUND if isinstance(error, ExecutableNotFound) else _NOT_STARTED
            return {"output": f"{error.message}\n", "returncode": code, "exception_info": ""}
        if result.ended is Ended.TIMEOUT:
            late = f"the command was killed after {limit} seconds, with all that it had started"
            return {
                "output": result.stdout,
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {late}",
                "extra": {"exception_type": "ExecTimeout", "exception": late},
            }
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 9)
        output = {"output": result.stdout, "returncode": code, "exception_info": ""}
        _raise_if_submitted(output)
        return output

    def _environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self.config.forward_env if name in os.environ} | self.config.env

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What templates of prompts may use."""
        found: dict[str, Any] = recursive_merge(self.config.model_dump(), platform.uname()._asdict(), more)
        return found

    def serialize(self) -> dict[str, Any]:
        """What a trajectory's file says of the environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Stop the sandbox, confirmed; doing it again does nothing."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.stop()
            self._client.close()


def _raise_if_submitted(output: dict[str, Any]) -> None:
    """mini-swe-agent's protocol: the first line of a command that succeeded says that the rest is the submission."""
    first, _, rest = output["output"].lstrip().partition("\n")
    if first.strip() == _SUBMIT and output["returncode"] == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})
