"""Make the tasks' environments from what was fetched. Nothing of it runs here: what has to run, runs in a sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.demo import fetch
from dsec.demo.boxes import Boxes, Environment, LayerSource
from dsec.demo.grade import TOOLKIT_PATH
from dsec.demo.pairs import SDISTS, TOOLKIT, Task
from dsec.demo.patch import pack, read_archive, read_directory
from dsec.demo.policies import REPOSITORY
from dsec.demo.unpack import unpack_sdist, unpack_wheels
from dsec.errors import NodeError

__all__ = ["Prepared", "probe_python", "prepare_layers"]

_PROBE = """\
import json, os, sys
print(json.dumps([sys.version_info[0], sys.version_info[1], os.uname().machine, os.confstr("CS_GNU_LIBC_VERSION")]))
"""
_PROBE_S = 60.0


@dataclass(frozen=True)
class Prepared:
    """The layers of the tasks, and where their releases lie unpacked."""

    toolkit: str
    agent_layers: dict[str, str]
    grader_layers: dict[str, str]
    repositories: dict[tuple[str, str], Path]


async def probe_python(boxes: Boxes, image: str) -> fetch.SandboxPython:
    """Ask the image's own Python what it is; raises NodeError when there is none."""
    box = await boxes.create(_bare(image))
    try:
        outcome = await box.run("exec python3 -", timeout_s=_PROBE_S, stdin=_PROBE.encode())
    finally:
        await box.stop()
    if outcome.exit_code != 0:
        said = outcome.stderr[-300:].decode(errors="replace")
        raise NodeError(f"{image} has no usable python3: {said}", phase="prepare")
    major, minor, machine, glibc = json.loads(outcome.stdout)
    return fetch.SandboxPython((int(major), int(minor)), str(machine), int(str(glibc).rpartition(".")[2]))


async def prepare_layers(
    boxes: Boxes, image: str, tasks: Sequence[Task], cache: Path, say: Callable[[str], None]
) -> Prepared:
    """Fetch, unpack and build what the tasks need. A second run finds all of it and needs no network."""
    python = await probe_python(boxes, image)
    say("fetching source distributions and wheels")
    wanted = {(task.project, v): SDISTS[(task.project, v)] for task in tasks for v in (task.broken, task.golden)}
    sdists = await asyncio.to_thread(fetch.fetch_sdists, cache, wanted)
    wheels = await asyncio.to_thread(fetch.fetch_wheels, cache, TOOLKIT, python)
    say("unpacking")
    repositories = {release: cache / "releases" / f"{release[0]}-{release[1]}" for release in wanted}
    for release, path in repositories.items():
        if not path.is_dir():
            await asyncio.to_thread(unpack_sdist, sdists[release], path)
    toolkit = await _toolkit(boxes, image, wheels, cache, python)
    layers = [toolkit]
    agents = {task.name: _agent_layer(task, repositories) for task in tasks}
    graders = {task.name: await asyncio.to_thread(_grader_layer, task, repositories, cache) for task in tasks}
    layers += [*agents.values(), *graders.values()]
    say(f"building {len(layers)} layers")
    await boxes.build(layers)
    return Prepared(
        toolkit=toolkit.reference,
        agent_layers={name: layer.reference for name, layer in agents.items()},
        grader_layers={name: layer.reference for name, layer in graders.items()},
        repositories=repositories,
    )


def _bare(image: str) -> Environment:
    return Environment(image=image, workspace=None, toolkits=(), env={}, memory_mib=1024)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([repr(part) for part in parts]).encode()).hexdigest()[:10]


def _agent_layer(task: Task, repositories: dict[tuple[str, str], Path]) -> LayerSource:
    release = (task.project, task.broken)
    reference = f"workspace/demo-{task.name}:{task.broken}-{_digest(SDISTS[release])}"
    return LayerSource(reference, repositories[release], REPOSITORY)


def _grader_layer(task: Task, repositories: dict[tuple[str, str], Path], cache: Path) -> LayerSource:
    """Release N+1 with the source of N, kept unpacked in the cache."""
    broken, golden = (task.project, task.broken), (task.project, task.golden)
    digest = _digest(SDISTS[broken], SDISTS[golden], task.source)
    target = cache / "graders" / f"{task.name}-{digest}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, "repository")
            shutil.copytree(repositories[golden], made, symlinks=True)
            shutil.rmtree(made / task.source)
            shutil.copytree(repositories[broken] / task.source, made / task.source, symlinks=True)
            made.rename(target)
    return LayerSource(f"workspace/demo-{task.name}-grader:{task.golden}-{digest}", target, REPOSITORY)


async def _toolkit(
    boxes: Boxes, image: str, wheels: Sequence[Path], cache: Path, python: fetch.SandboxPython
) -> LayerSource:
    """The wheels, unpacked here and compiled in a sandbox: else every test run would compile pytest again."""
    digest = _digest(python, *(wheel.name for wheel in wheels), *(wheel.stat().st_size for wheel in wheels))
    target = cache / "toolkits" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, "toolkit")
            await asyncio.to_thread(unpack_wheels, wheels, made)
            compiled = await _compiled(boxes, image, made)
            await asyncio.to_thread(_add_and_move, made, compiled, target)
    return LayerSource(f"toolkit/demo-pytest:{digest}", target, TOOLKIT_PATH)


def _add_and_move(made: Path, files: Mapping[str, bytes], target: Path) -> None:
    for path, content in files.items():
        (made / path).parent.mkdir(exist_ok=True)
        (made / path).write_bytes(content)
    made.rename(target)


async def _compiled(boxes: Boxes, image: str, toolkit: Path) -> dict[str, bytes]:
    """Byte code of a directory of modules, by path, made by the image's own Python in a sandbox."""
    script = (
        f"set -e; mkdir -p {TOOLKIT_PATH}; cd {TOOLKIT_PATH}; tar --no-same-owner --strip-components=1 -xf -\n"
        f"python3 -m compileall -q --invalidation-mode unchecked-hash {TOOLKIT_PATH} >&2 || true\n"
        "find . -name '*.pyc' -print0 | tar --null -T - --transform 's,^[.]/,pytest/,' -cf -\n"
    )
    box = await boxes.create(_bare(image))
    try:
        outcome = await box.run(script, timeout_s=_PROBE_S, stdin=pack(read_directory(toolkit), "toolkit"))
    finally:
        await box.stop()
    if outcome.exit_code != 0:
        said = outcome.stderr[-300:].decode(errors="replace")
        raise NodeError(f"the toolkit could not be compiled: {said}", phase="prepare")
    found = read_archive(outcome.stdout, "pytest", lambda path: path.endswith(".pyc"))
    return {path: content for path, content in found.items() if (toolkit / path).parent.parent.is_dir()}
