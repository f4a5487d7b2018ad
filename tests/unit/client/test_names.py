"""The SDK's names: what is exported, that both faces agree, what is refused by name."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import dsec
import dsec.errors
import dsec.sync
from dsec.client import artefacts, client, discovery, execs, files, jobs, layers, sandbox, snapshots, stdin
from dsec.node.paths import NodePaths
from dsec.sync import client as sync_client
from dsec.sync import sandbox as sync_sandbox

PAIRS = [
    (client.DSecClient, sync_client.DSecClient),
    (sandbox.Sandbox, sync_sandbox.Sandbox),
    (execs.Exec, sync_sandbox.Exec),
    (stdin.Stdin, sync_sandbox.Stdin),
    (files.Files, sync_sandbox.Files),
    (jobs.Job, sync_client.Job),
    (artefacts.Images, sync_client.Images),
    (layers.Layers, sync_client.Layers),
    (artefacts.Tokens, sync_client.Tokens),
    (snapshots.Snapshots, sync_client.Snapshots),
]
_INTERNAL = {"send_on", "granted", "rewind", "unsent", "forget", "lost", "give_up"}


def _public(kind: type) -> dict[str, object]:
    return {
        name: value for name, value in inspect.getmembers(kind) if not name.startswith("_") and name not in _INTERNAL
    }


def test_all_is_what_it_says() -> None:
    """Every name of ``dsec.__all__`` exists, is sorted, and holds the whole error tree."""
    assert sorted(dsec.__all__) == sorted(set(dsec.__all__))
    for name in dsec.__all__:
        assert getattr(dsec, name) is not None
    tree = set(dsec.errors.__all__) - {"Fault", "error_from_wire", "file_error"}
    assert tree <= set(dsec.__all__)
    with pytest.raises(AttributeError):
        dsec.no_such_name  # noqa: B018


@pytest.mark.parametrize(("core", "mirror"), PAIRS)
def test_sync_has_the_same_names_and_signatures(core: type, mirror: type) -> None:
    """Every public name of an async class is there in its blocking one, with the same parameters, and no other."""
    assert set(_public(core)) | _instance_names(core) == set(_public(mirror))
    for name, value in _public(core).items():
        if inspect.isfunction(value):
            theirs = inspect.signature(getattr(mirror, name)).parameters
            assert list(theirs.values()) == list(inspect.signature(value).parameters.values()), name


def _instance_names(core: type) -> set[str]:
    """Attributes that an async class sets in its constructor and its mirror has as properties."""
    return {
        client.DSecClient: {"images", "layers", "snapshots", "tokens"},
        sandbox.Sandbox: {"id", "files"},
        execs.Exec: {"id"},
        jobs.Job: {"name"},
    }.get(core, set())


def test_both_clients_are_constructed_alike() -> None:
    """The constructors take the same parameters."""
    ours = inspect.signature(client.DSecClient.__init__)
    assert ours.parameters == inspect.signature(sync_client.DSecClient.__init__).parameters


_CLIENT = client.DSecClient("http://127.0.0.1:9", "token")
_SANDBOX = _CLIENT.attach("sb-fake-" + "a" * 26)
WAITING: list[tuple[str, Callable[[], object]]] = [
    ("DSecClient(project=)", lambda: client.DSecClient(project="p")),
    ("sandboxes(gang=True)", lambda: _CLIENT.sandboxes(dsec.SandboxArgs("i"), n=2, gang=True)),
    ("call_many", lambda: _CLIENT.call_many([])),
]


@pytest.mark.parametrize(("name", "call"), WAITING)
def test_what_waits_is_refused_by_name(name: str, call: Callable[[], object]) -> None:
    """A method or field of a later version raises Unsupported, naming itself."""
    with pytest.raises(dsec.Unsupported) as raised:
        call()
    assert name in str(raised.value)


@pytest.mark.anyio
async def test_what_waits_and_is_awaited_is_refused_by_name() -> None:
    """The same for coroutines, without any connection."""
    calls = {
        "call": _CLIENT.call(None),
        "run_microvm": _CLIENT.run_microvm(None),
        "run_vm": _CLIENT.run_vm(None),
        "snapshot": _SANDBOX.snapshot(memory=True),
    }
    for name, call in calls.items():
        with pytest.raises(dsec.Unsupported) as raised:
            await call
        assert name in str(raised.value)


def test_args_are_frozen_and_replaceable() -> None:
    """SandboxArgs cannot be changed, replace gives a changed copy, and both pickle and compare by value."""
    args = dsec.SandboxArgs("image", memory_mib=(512, 1024), env={"A": "1"})
    with pytest.raises(AttributeError):
        args.cpu = 4  # type: ignore[misc]
    other = args.replace(cpu=4)
    assert (args.cpu, other.cpu, other.memory_mib, other.env) == (2, 4, (512, 1024), {"A": "1"})
    assert pickle.loads(pickle.dumps(args)) == args != other


def test_aliases_of_the_paper() -> None:
    """The paper's names mean the same fields; a field given twice is refused."""
    args = dsec.SandboxArgs(container_image="i", memory_limit_mb=2048, cpu_cores_limit=4, ttl_running_stop=60)
    assert (args.image, args.memory_mib, args.cpu, args.idle_timeout_s) == ("i", 2048, 4, 60)
    assert args.replace(init_user="root").user == "root"
    with pytest.raises(dsec.InvalidArgument, match="twice"):
        dsec.SandboxArgs("i", memory_mib=1, memory_limit_mb=2)
    with pytest.raises(dsec.Unsupported, match="memroy"):
        dsec.SandboxArgs("i", memroy=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "2", None, True, (1,), (0, 2)])
@pytest.mark.parametrize("name", ["cpu", "memory_mib", "disk_mib", "pids"])
def test_impossible_limits(name: str, value: object) -> None:
    """A limit is a positive finite number or a pair of such."""
    with pytest.raises(dsec.InvalidArgument, match=name):
        dsec.SandboxArgs("i", **{name: value})  # type: ignore[arg-type]


def test_the_path_of_node_json_is_the_nodes_own() -> None:
    """The one path that the SDK knows is the one that the node writes."""
    for environment, paths in (
        ({}, NodePaths()),
        ({"DSEC_NODE": "two"}, NodePaths("two")),
        ({"DSEC_ROOT": "/tmp/x"}, NodePaths("local", Path("/tmp/x"))),
    ):
        assert discovery.node_json(environment) == paths.node_json
