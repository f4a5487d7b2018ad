"""A node's configuration: the operator's TOML, the flags of ``dsec up``, and what was resolved from both."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from dsec.api.packing import Residue
from dsec.errors import InvalidArgument
from dsec.network import NetworkSettings, parse_settings_problem
from dsec.node.paths import NodePaths

__all__ = [
    "NodeConfig",
    "Overcommit",
    "Registries",
    "StoreSettings",
    "default_store",
    "load_config",
    "read_settings",
    "save_config",
]

DEFAULT_IMAGE = "dsec/debian:12"
_LEAST_MIB = {"layer_cache_mib": 0, "layers_memory_mib": 64}
_MOST_PATIENCE_S = 3600.0
_CHOSEN = frozenset({"reading", "reading_why", "layers_groups", "boot_id", "id_block"})
_DOMAIN = re.compile(r"(?=.{1,180}$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_STORE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


class Overcommit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lone limit implies the request limit ÷ factor."""

    cpu: float = 50
    memory: float = 6
    disk: float = 100
    pids: float = 64


class Registries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where images are pulled from."""

    mirrors: dict[str, str] = {}
    """Registry → prefix that stands for it: ``{"docker.io": "mirror.example:5000/hub"}``."""
    insecure: tuple[str, ...] = ()
    """Registries (``host:port``) that are spoken to without TLS."""
    patience_s: float = 60.0
    """How long in all a pull waits for a registry that asks to be left alone, or that breaks off downloads."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where nodes share layers. Credentials come from the environment and the usual AWS files, never here."""

    url: str
    """``file:///DIRECTORY`` on any mount that all nodes have, or ``s3://BUCKET[/PREFIX]``."""
    endpoint: str | None = None
    """Of an S3 server that is not Amazon's."""
    region: str | None = None
    default: bool = False
    """Which one is meant where none is named; a lone store always is."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS of the API: PEM files of a certificate (with its chain) and its key, or ``generate``: one of its own."""

    certificate: str | None = None
    key: str | None = None
    generate: bool = False


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a process of the node needs to know. Sizes in MiB, times in seconds."""

    node: str = "local"
    root: str | None = None
    host: str = "127.0.0.1"
    port: int = 7373
    """0: a free one."""
    tls: TlsSettings = TlsSettings()
    ports_domain: str = "localhost"
    """Exposed ports are ``PORT-ID.`` this. A name whose subdomains all lead here, and nothing else is at."""
    plaintext: bool = False
    """Whether other machines may connect without TLS: something in front has it, or the network is trusted."""
    group: str | None = None
    """Members may read the token."""
    pool_mib: int | None = None
    """None: the smaller of half the free space and 64 GiB."""
    shared_layers: str | None = None
    """Read-only data directory of another node, whose images and layers are here too."""
    build_default_image: bool = True
    collapse_mib: int = 3072
    """Neighbouring layers of an imported image of more than four become one layer of at most this size; 0: never."""
    collapse_layers: int = 16
    """Most layers that an imported image keeps, however large they are."""
    max_sandboxes: int = 4000
    """At most 4,096, the node's ID ranges."""
    memory_mib: int | None = None
    """What requests may add up to. None: the machine's memory less 1 GiB."""
    cpus: float | None = None
    """What requests may add up to. None: the machine's."""
    max_lifetime_s: float = 7 * 86400
    max_idle_s: float = 7 * 86400
    tombstone_s: float = 86400
    fault_points: bool = False
    """For tests of dsec only: root may let a part of the node die at a named step."""
    overcommit: Overcommit = Overcommit()
    registries: Registries = Registries()
    stores: dict[str, StoreSettings] = {}
    """By name, ``[a-z0-9-]``."""
    reader: Literal["auto", "filled", "mounted", "whole"] = "auto"
    """How layers of stores come: ``filled`` as they are read, ``whole`` before; ``auto`` by a trial."""
    reading: Literal["filled", "whole"] = "whole"
    """What ``reader`` came to; chosen by ``dsec up``."""
    reading_why: str = ""
    layers_groups: tuple[str, ...] = ()
    """Files by which what fills layers joins its cgroup; made by ``dsec up``."""
    layer_cache_mib: int | None = None
    """Above this, layers that a store has are evicted, the longest unused first. None: by the disk's size."""
    layers_memory_mib: int | None = None
    """Most memory, page cache included, of what fills layers. None: unlimited."""
    residue: Residue = Residue()
    """What packing a sandbox leaves out on this node, unless a call says ``defaults=False``."""
    network: NetworkSettings = NetworkSettings()
    boot_id: str = ""
    id_block: int = 0
    """First host ID of this node's ranges; chosen by ``dsec up`` under the machine-wide lock."""

    @property
    def has_tls(self) -> bool:
        """Whether the API speaks TLS."""
        return self.tls.generate or self.tls.certificate is not None

    @property
    def tls_files(self) -> tuple[str, str]:
        """Certificate and key, where there is TLS."""
        own = self.paths.data / "tls"
        return self.tls.certificate or str(own / "certificate.pem"), self.tls.key or str(own / "key.pem")

    @property
    def paths(self) -> NodePaths:
        """Where this node's files are."""
        return NodePaths(self.node, Path(self.root) if self.root else None).checked()


def read_settings(paths: NodePaths) -> NodeConfig:
    """The operator's TOML (or defaults without one); raises InvalidArgument naming the file and the field."""
    try:
        raw = tomllib.loads(paths.settings.read_text())
    except FileNotFoundError:
        raw = {}
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{paths.settings}: {error}") from None
    if chosen := _CHOSEN & raw.keys():
        raise InvalidArgument(f"{paths.settings}: {min(chosen)} is chosen by `dsec up`, and no setting")
    raw |= {"node": paths.name, "root": str(paths.root) if paths.root else None}
    try:
        config = msgspec.convert(raw, NodeConfig)
        _check_stores(config.stores, reader=config.reader)
        _check_cache(config)
        if problem := config.residue.problem():
            raise InvalidArgument(f"residue: {problem}")
        if not 0 <= config.registries.patience_s <= _MOST_PATIENCE_S:
            raise InvalidArgument(f"registries.patience_s is between 0 and {_MOST_PATIENCE_S:g}")
        _check_tls(config.tls)
        if not _DOMAIN.fullmatch(config.ports_domain):
            raise InvalidArgument("ports_domain: a name of lower-case letters, digits, - and .")
        if config.collapse_mib < 0 or not 1 <= config.collapse_layers <= 100:
            raise InvalidArgument("collapse_mib is at least 0, collapse_layers between 1 and 100")
        if problem := parse_settings_problem(config.network):
            raise InvalidArgument(problem)
    except (msgspec.ValidationError, InvalidArgument) as error:
        raise InvalidArgument(f"{paths.settings}: {error}") from None
    return config


def _check_stores(stores: dict[str, StoreSettings], *, reader: str) -> None:
    for name, store in stores.items():
        if not _STORE.fullmatch(name):
            raise InvalidArgument(f"stores.{name}: a store's name is of a-z, 0-9 and -")
        if not store.url.startswith(("file:///", "s3://")):
            raise InvalidArgument(f"stores.{name}: the url is file:///DIRECTORY or s3://BUCKET[/PREFIX]")
    if reader in ("filled", "mounted") and not stores:
        raise InvalidArgument(f"reader: {reader!r}, and there is no store to read from")
    if sum(store.default for store in stores.values()) > 1:
        raise InvalidArgument("stores: only one can be the default")


def _check_tls(tls: TlsSettings) -> None:
    if (tls.certificate is None) != (tls.key is None):
        raise InvalidArgument("tls: a certificate needs its key, and a key its certificate")
    if tls.generate and tls.certificate is not None:
        raise InvalidArgument("tls: either a certificate is given, or one is generated")


def _check_cache(config: NodeConfig) -> None:
    for name in ("layer_cache_mib", "layers_memory_mib"):
        value = getattr(config, name)
        if value is not None and value < _LEAST_MIB[name]:
            raise InvalidArgument(f"{name} is at least {_LEAST_MIB[name]}, not {value}")


def default_store(stores: dict[str, StoreSettings]) -> str | None:
    """The store that is meant where none is named: the only one, or the one that says so."""
    if len(stores) == 1:
        return next(iter(stores))
    return next((name for name, store in stores.items() if store.default), None)


def load_config(path: Path) -> NodeConfig:
    """The configuration that ``dsec up`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=NodeConfig)


def save_config(config: NodeConfig) -> None:
    """Write the configuration in force, atomically."""
    target = config.paths.config_json
    partial = target.with_suffix(".new")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    partial.replace(target)
