"""Harbor on dsec: ``--environment dsec.integrations.harbor:DsecEnvironment`` (``environment.import_path``).

A task needs an image: ``docker_image`` of its ``[environment]``, or ``image`` of the job's environment kwargs.
Nothing is built from a Dockerfile, and Compose files are refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.trial.config import ResourceMode

import dsec
from dsec.api.types import Ended, Limit
from dsec.errors import CommandError, ExecutableNotFound, InvalidArgument

__all__ = ["DsecEnvironment"]

_ANY_CPU = 1024.0
_ANY_MEMORY_MIB = 4.0 * 1024 * 1024
"""Limits of what has a request only: beyond any node, so they never bind."""


class DsecEnvironment(BaseEnvironment):
    """One sandbox of one trial.

    Kwargs: ``image`` in place of the task's, ``network="none"`` to run a task without the network that it declares,
    ``lifetime_s``, ``deadline_s`` (how long a create may wait for the image or for room). A sandbox that is lost ends
    its trial with an exception and without a reward.
    """

    def __init__(
        self, *args: Any, image: str | None = None, network: Literal["task", "none"] = "task",
        lifetime_s: float = 14400, deadline_s: float = 600, **kwargs: Any,
    ) -> None:  # fmt: skip
        if network not in ("task", "none"):
            raise InvalidArgument(f"network is 'task' or 'none', not {network!r}")
        if kwargs.get("mounts"):
            raise InvalidArgument("a dsec sandbox has no mounts of the host: upload files instead")
        self._image = image
        self._network = network
        self._lifetime_s = float(lifetime_s)
        self._deadline_s = float(deadline_s)
        self._client = dsec.DSecClient()
        self._sandbox: dsec.Sandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Its name in results."""
        return "dsec"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """No network can be had; one that changes, a list of hosts, GPUs and Compose cannot."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Requests and limits of both, in fractions of a core too."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, cpu_request=True, memory_limit=True, memory_request=True, fractional_cpus=True
        )

    @property
    def sandbox(self) -> dsec.Sandbox:
        """The sandbox. Raises InvalidArgument before ``start`` and after ``stop``."""
        if self._sandbox is None:
            raise InvalidArgument("this environment is not started")
        return self._sandbox

    def _validate_definition(self) -> None:
        if self._image is None and self.task_env_config.docker_image is None:
            raise InvalidArgument(
                f"{self.environment_name} names no image, and dsec builds none from a Dockerfile",
                remedy="Set docker_image in [environment], or image in the environment's kwargs",
            )
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise InvalidArgument(f"{self.environment_name} is made of Compose services, which dsec has not")

    # Its life

    async def start(self, force_build: bool) -> None:
        """Make the sandbox, Harbor's directories in it, and the task's files where it has an image of its own."""
        self._sandbox = await self._client.sandbox(self._args(), deadline_s=self._deadline_s)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    def _args(self) -> dsec.SandboxArgs:
        image = self._image or self.task_env_config.docker_image
        fields: dict[str, Any] = {
            "env": self._startup_env(),
            "workdir": self.task_env_config.workdir,
            "network": "none" if self._network == "none" or self._network_disabled else "open",
            "labels": {"integration": "harbor", "harbor-session": self.session_id[:200]},
            "lifetime_s": self._lifetime_s,
            "idle_timeout_s": self._lifetime_s,
        }
        limits = {
            "cpu": self._limit("cpu", _ANY_CPU),
            "memory_mib": self._limit("memory", _ANY_MEMORY_MIB),
            "disk_mib": self._effective_storage_mb,
        }
        return dsec.SandboxArgs(image, **fields, **{name: one for name, one in limits.items() if one is not None})

    def _limit(self, resource: Literal["cpu", "memory"], boundless: float) -> Limit | None:
        """As Harbor's policy has it; a task that says nothing gets dsec's default."""
        limit = self._resource_limit_value(resource, auto_mode=ResourceMode.LIMIT)
        request = self._resource_request_value(resource, auto_mode=ResourceMode.LIMIT)
        if request is None:
            return limit
        return (request, boundless if limit is None else limit)

    async def stop(self, delete: bool) -> None:
        """Stop the sandbox, confirmed. Its story stays readable for 24 h, its files do not, whatever ``delete``."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.stop()
        await self._client.close()

    # What runs in it

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in bash, or sh where there is none. A timeout kills all of it and raises RuntimeError."""
        as_user = self._resolve_user(user)
        try:
            result = await self.sandbox.run_shell(
                command, cwd=cwd, env=self._merge_env(env), timeout_s=timeout_sec,
                user=None if as_user is None else str(as_user),
            )  # fmt: skip
        except (CommandError, InvalidArgument) as error:
            if isinstance(error, InvalidArgument) and error.phase not in ("user", "cwd"):
                raise
            code = 127 if isinstance(error, ExecutableNotFound) else 126
            return ExecResult(stdout="", stderr=f"{error.message}\n", return_code=code)
        if result.ended is Ended.TIMEOUT:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 9)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=code)

    # Its files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Write one file, with the mode it has here."""
        mode, data = await asyncio.to_thread(_mode_and_data, Path(source_path))
        await self.sandbox.files.write(target_path, data, mode=mode, parents=True, user="0")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Write what is in a directory."""
        await self.sandbox.files.upload(Path(source_dir), target_dir, user="0", parents=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Read one file."""
        data = await self.sandbox.files.read(source_path, user="0")
        await asyncio.to_thread(_write, Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Read what is in a directory; links that lead out of it, sockets and the like are left out."""
        await self.sandbox.files.download(source_dir, Path(target_dir), user="0")


def _mode_and_data(file: Path) -> tuple[int, bytes]:
    return file.stat().st_mode & 0o777, file.read_bytes()


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
