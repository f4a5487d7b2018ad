"""The deployment: one sandbox and its runtime."""

from __future__ import annotations

import logging
from typing import Any, Literal, Self

from pydantic import BaseModel
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

import dsec
from dsec.integrations.swerex.runtime import DsecRuntime
from dsec.sync.portal import apart

__all__ = ["DsecDeployment", "DsecDeploymentConfig"]


class DsecDeploymentConfig(BaseModel, extra="forbid"):
    """What the sandbox is made of: fields of ``dsec.SandboxArgs``, under the same names."""

    image: str = "dsec/debian:12"
    cpu: float = 2
    memory_mib: float = 1024
    disk_mib: float = 10240
    pids: int = 4096
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    lifetime_s: float = 14400
    deadline_s: float = 600
    """How long a create may wait for the image or for room on the node."""
    type: Literal["dsec"] = "dsec"
    """SWE-ReX tells configurations apart by it."""

    def get_deployment(self) -> DsecDeployment:
        """The deployment, as SWE-ReX's own configurations give theirs."""
        return DsecDeployment.from_config(self)


class DsecDeployment(AbstractDeployment):
    """``start`` makes the sandbox, ``stop`` ends it, confirmed; both may be called from different event loops."""

    def __init__(self, *, logger: logging.Logger | None = None, **fields: Any) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._config = DsecDeploymentConfig(**fields)
        self._hooks = CombinedDeploymentHook()
        self._client = dsec.DSecClient()
        self._runtime: DsecRuntime | None = None

    @classmethod
    def from_config(cls, config: DsecDeploymentConfig) -> Self:
        """The deployment of a configuration."""
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        """Tell a hook of each step."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> DsecRuntime:
        """The runtime. Raises DeploymentNotStartedError before ``start`` and after ``stop``."""
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox runs. Raises DeploymentNotStartedError."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Make the sandbox."""
        self._hooks.on_custom_step("Starting sandbox")
        asked = self._config
        fields = asked.model_dump(exclude={"deadline_s", "type", "labels"})
        labels = {"integration": "swe-rex"} | asked.labels
        args = dsec.SandboxArgs(**fields, labels=labels, idle_timeout_s=asked.lifetime_s)
        sandbox = await apart(self._client.sandbox(args, deadline_s=asked.deadline_s))
        self._runtime = DsecRuntime(sandbox, logger=self.logger)

    async def stop(self) -> None:
        """End the runtime's sessions and the sandbox; doing it again does nothing."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await apart(runtime.sandbox.stop())
            await runtime.close()
            await apart(self._client.close())
