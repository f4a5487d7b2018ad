"""What the fetcher is told of the node's stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from dsec.errors import InvalidArgument
from dsec.node.config import NodeConfig, default_store
from dsec.stores.settings import DirectoryAddress, parse_address

__all__ = ["fetcher_config", "write_fetcher_json"]

_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""What leads to credentials that only the edge can get."""


def fetcher_config(config: NodeConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    """What ``dsec-fetcher serve --config`` reads: the default store is asked first. Raises InvalidArgument."""
    default = default_store(config.stores)
    names = sorted(config.stores, key=lambda name: (name != default, name))
    faults = str(config.paths.fetcher_faults) if config.fault_points else None
    return {"stores": [_place(config, name, environment) for name in names], "fault_points": faults}


def _place(config: NodeConfig, name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    own = config.stores[name]
    address = parse_address(own.url, endpoint=own.endpoint, region=own.region, environment=environment)
    if isinstance(address, DirectoryAddress):
        return {"directory": {"path": str(address.path)}}
    asked_for = [name for name in _ROLES if name in environment]
    if asked_for and not address.secrets:
        raise InvalidArgument(
            f"layers of store {name!r} cannot be read on demand with the credentials that {asked_for[0]} leads to",
            remedy='Use access keys, an instance role, or reader = "whole"',
        )
    told = {
        "bucket": address.bucket,
        "prefix": address.prefix,
        "endpoint": address.endpoint,
        "region": address.region,
    }
    return {"bucket": told | address.secrets}


def write_fetcher_json(config: NodeConfig) -> None:
    """Write it for root's eyes, with this process's credentials; nothing where layers are pulled whole."""
    if config.reading != "filled":
        return
    target = config.paths.fetcher_json
    partial = target.with_suffix(".new")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(fetcher_config(config, os.environ)))
    partial.replace(target)
