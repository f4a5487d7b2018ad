"""The keeper's table: which processes a node has, and the runtime's configuration. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dsec.network import NetworkUplink
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.uplink import namespace_path

__all__ = [
    "SERVICES",
    "Service",
    "apiserver_uid",
    "edge_uid",
    "fetcher_uid",
    "keeper_definition",
    "proxy_config",
    "proxy_uid",
    "runtime_config",
    "service_table",
    "services_of",
    "uplink_of",
]

SERVICES = ("holder", "fetcher", "runtime", "proxy", "edge", "apiserver")
"""In the order of their start; the first two where layers are read on demand."""
_PROXY_UIDS = 0x3FFFFF00
_FETCHER_UIDS = 0x3FFFFE00
_APISERVER_UIDS = 0x3FFFFD00
_EDGE_UIDS = 0x3FFFFC00
_PASSED_ON = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "RUST_LOG", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR"),
)
_STORE_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
"""Only for whom they are: the edge, which publishes."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the keeper starts and restarts, as ``crates/proto/src/keeper.rs`` has it."""

    name: str
    argv: list[str]
    env: list[tuple[str, str]]
    log: str
    listen: list[dict[str, dict[str, Any]]]
    cgroups: list[str]


def service_table(config: NodeConfig, binaries: Binaries, environment: dict[str, str] | None = None) -> list[Service]:
    """The table, in the order of start. What it takes over of the environment is a fixed list of names."""
    paths = config.paths
    given = dict(os.environ) if environment is None else environment
    env = sorted((name, given[name]) for name in _PASSED_ON if name in given)
    python_env = sorted([*env, ("PYTHONUNBUFFERED", "1"), ("PYTHONSAFEPATH", "1")])

    credentials = [(name, given[name]) for name in _STORE_CREDENTIALS if name in given]

    def python(name: str, listen: dict[str, dict[str, Any]], more: Sequence[tuple[str, str]] = ()) -> Service:
        return Service(
            name=name,
            argv=[sys.executable, "-m", f"dsec.{name}", "--config", str(paths.config_json)],
            env=sorted([*python_env, *more]),
            log=str(paths.logs / f"{name}.log"),
            listen=[listen],
            cgroups=[],
        )

    return [
        *(_loading(config, binaries, env) if config.reading == "filled" else []),
        Service(
            name="runtime",
            argv=[str(binaries.runtime), "serve", "--config", str(paths.runtime_json)],
            env=env,
            log=str(paths.logs / "runtime.log"),
            listen=[{"unix": {"path": str(paths.runtime_socket), "mode": 0o600}}],
            cgroups=[],
        ),
        Service(
            name="proxy",
            argv=[str(binaries.proxy), "serve", "--config", str(paths.proxy_json)],
            env=env,
            log=str(paths.logs / "proxy.log"),
            listen=[
                {"unix": {"path": str(path), "mode": 0o600}} for path in (paths.proxy_socket, paths.ports_socket)
            ],
            cgroups=[],
        ),
        python("edge", {"unix": {"path": str(paths.edge_socket), "mode": 0o600}}, credentials),
        python("apiserver", {"tcp": {"host": config.host, "port": config.port}}),
    ]


def _loading(config: NodeConfig, binaries: Binaries, env: list[tuple[str, str]]) -> list[Service]:
    """What fills layers while they are read."""
    paths = config.paths

    def service(name: str, program: Path, socket: Path, *arguments: str) -> Service:
        return Service(
            name=name,
            argv=[str(program), "serve", *arguments],
            env=env,
            log=str(paths.logs / f"{name}.log"),
            listen=[{"unix": {"path": str(socket), "mode": 0o600}}],
            cgroups=list(config.layers_groups),
        )

    to_holder: tuple[str, ...] = ("--keeper", str(paths.keeper_socket), "--fetcher", str(paths.fetcher_socket))
    if config.fault_points:
        to_holder = (*to_holder, "--faults", str(paths.faults))
    to_fetcher = ("--uid", str(fetcher_uid(config)), "--config", str(paths.fetcher_json))
    return [
        service("holder", binaries.holder, paths.holder_socket, *to_holder),
        service("fetcher", binaries.fetcher, paths.fetcher_socket, *to_fetcher),
    ]


def services_of(config: NodeConfig) -> tuple[str, ...]:
    """The services that this node has, in the order of their start."""
    return SERVICES if config.reading == "filled" else SERVICES[2:]


def fetcher_uid(config: NodeConfig) -> int:
    """The fetcher's user, as ``proxy_uid``."""
    return _FETCHER_UIDS + (config.id_block >> 28)


def proxy_uid(config: NodeConfig) -> int:
    """The proxy's user: nobody else's, one for each node, just below the first ID of any sandbox."""
    return _PROXY_UIDS + (config.id_block >> 28)


def apiserver_uid(config: NodeConfig) -> int:
    """The apiserver's user, as ``proxy_uid``."""
    return _APISERVER_UIDS + (config.id_block >> 28)


def edge_uid(config: NodeConfig) -> int:
    """The edge's user, as ``proxy_uid``."""
    return _EDGE_UIDS + (config.id_block >> 28)


def proxy_config(config: NodeConfig) -> dict[str, Any]:
    """What ``dsec-proxy serve --config`` reads."""
    faults = str(config.paths.proxy_faults) if config.fault_points else None
    return {
        "uid": proxy_uid(config),
        "ports_uid": apiserver_uid(config),
        "ports_domain": config.ports_domain,
        "fault_points": faults,
        "resolvers": config.network.resolver_addresses,
    }


def keeper_definition(program: Path) -> Service:
    """What ``restart`` tells the keeper of itself: only the program counts."""
    return Service(name="keeper", argv=[str(program)], env=[], log="", listen=[], cgroups=[])


def uplink_of(uplink: NetworkUplink | None) -> dict[str, str | None] | None:
    """Where the runtime finds it."""
    if uplink is None:
        return None
    namespace = None if uplink.namespace is None else str(namespace_path(uplink.namespace))
    return {"interface": uplink.interface, "namespace": namespace}


def runtime_config(config: NodeConfig, binaries: Binaries, *, pool_mib: int) -> dict[str, Any]:
    """What ``dsec-runtime serve --config`` reads."""
    paths = config.paths
    layers = [str(paths.layers)]
    if config.shared_layers:
        layers.append(f"{config.shared_layers}/layers")
    return {
        "node": config.node,
        "run_dir": str(paths.run),
        "data_dir": str(paths.data),
        "layers_dirs": layers,
        "pool_mib": pool_mib,
        "pool_image": str(paths.pool_image),
        "cgroup_root": paths.cgroup,
        "id_block": config.id_block,
        "edge_uid": edge_uid(config),
        "max_sandboxes": config.max_sandboxes,
        "init_path": str(binaries.init),
        "python": sys.executable,
        "uplink": uplink_of(config.network.uplink),
        "holder_socket": str(paths.holder_socket) if config.reading == "filled" else None,
        "fault_points": str(paths.faults) if config.fault_points else None,
    }
