"""The environment class by itself: what Harbor's agents and verifiers ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import TrialPaths

import dsec
from dsec.integrations.harbor import DsecEnvironment

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Harbor runs on asyncio."""
    return "asyncio"


def make(tmp_path: Path, mode: ResourceMode = ResourceMode.AUTO, **kwargs: Any) -> DsecEnvironment:
    """An environment as a trial makes it."""
    (tmp_path / "environment").mkdir(exist_ok=True)
    return DsecEnvironment(
        environment_dir=tmp_path / "environment", environment_name="one", session_id="one__env",
        trial_paths=TrialPaths(tmp_path / "trial"), cpu_enforcement_policy=mode,
        task_env_config=EnvironmentConfig(docker_image="dsec/debian:12", cpus=1, memory_mb=256, storage_mb=512),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK), **kwargs,
    )  # fmt: skip


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[DsecEnvironment]:
    """A started one."""
    made = make(tmp_path)
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


async def test_exec(environment: DsecEnvironment) -> None:
    """Streams apart, exit code, user, directory and variables; what cannot start is its own failure."""
    ended = await environment.exec(
        "echo out $V; echo err >&2; pwd; exit 3", cwd="/usr", env={"V": "x"}, user="nobody"
    )
    assert (ended.stdout, ended.stderr, ended.return_code) == ("out x\n/usr\n", "err\n", 3)
    with environment.with_default_user(65534):
        assert (await environment.exec("id -u")).stdout == "65534\n"
    assert (await environment.exec("true", cwd="/no/such/place")).return_code == 126
    with pytest.raises(RuntimeError, match="timed out after 1"):
        await environment.exec("sleep 60", timeout_sec=1)


async def test_limits_are_the_sandboxes(environment: DsecEnvironment) -> None:
    """CPU, memory and disk of the task's configuration, as limits."""
    info = await environment.sandbox.info()
    assert (info.cpu, info.memory_mib, info.disk_mib) == (1, 256, 512)


async def test_trees_travel_both_ways(environment: DsecEnvironment, tmp_path: Path) -> None:
    """Names, modes, links and contents of a tree come back as they went; what is no file stays behind."""
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "a file").write_bytes(bytes(range(256)) * 20_000)
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("run")
    await environment.upload_dir(source, "/srv/new place")
    assert (await environment.exec("'/srv/new place/link'")).stdout == "ran\n"
    assert await environment.is_dir("/srv/new place/deep") and await environment.is_file("/srv/new place/run")
    await environment.exec("cd '/srv/new place' && mkfifo pipe && rm run && echo second > deep/two")
    await environment.download_dir("/srv/new place/deep", tmp_path / "back")
    assert (tmp_path / "back" / "er" / "a file").read_bytes() == (source / "deep" / "er" / "a file").read_bytes()
    assert (tmp_path / "back" / "two").read_text() == "second\n"
    await environment.upload_file(source / "run", "/srv/one/file")
    await environment.download_file("/srv/one/file", tmp_path / "one" / "file")
    assert (tmp_path / "one" / "file").read_text() == (source / "run").read_text()


async def test_a_hostile_tree_stays_inside(environment: DsecEnvironment, tmp_path: Path) -> None:
    """A link out of the tree is left out, and nothing is written outside."""
    await environment.exec("mkdir /srv/bad && ln -s ../../../../../../tmp /srv/bad/out && echo x > /srv/bad/file")
    await environment.download_dir("/srv/bad", tmp_path / "bad")
    assert [one.name for one in (tmp_path / "bad").iterdir()] == ["file"]


async def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    """Mounts, Compose, a network of one's own (in this version) and GPUs are refused before anything runs."""
    with pytest.raises(dsec.InvalidArgument, match="mounts"):
        make(tmp_path, mounts=[{"type": "bind", "source": "/", "target": "/host"}])
    with pytest.raises(RuntimeError, match="GPU"):
        make(tmp_path, override_gpus=1)
    (tmp_path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(dsec.InvalidArgument, match="Compose"):
        make(tmp_path)


async def test_a_request_alone_has_no_limit(tmp_path: Path) -> None:
    """Harbor's policies become pairs of request and limit."""
    asked = make(tmp_path, ResourceMode.REQUEST)._args()
    assert isinstance(asked.cpu, tuple) and asked.cpu[0] == 1 and asked.cpu[1] > 64
    assert make(tmp_path, ResourceMode.GUARANTEE)._args().cpu == (1, 1)
    assert make(tmp_path, ResourceMode.LIMIT)._args().cpu == 1
