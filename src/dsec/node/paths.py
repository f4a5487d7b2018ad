"""Where a node's files are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dsec.errors import InvalidArgument

__all__ = ["NodePaths", "check_node_name"]

_NODE = re.compile(r"[a-z0-9]{1,12}")
_LONGEST_SOCKET = 107


def check_node_name(name: str) -> str:
    """The name itself, or InvalidArgument."""
    if not _NODE.fullmatch(name):
        raise InvalidArgument(f"invalid node name {name!r}", remedy="Use 1 to 12 lower-case letters and digits")
    return name


class NodePaths(msgspec.Struct, frozen=True):
    """Files of node ``name``; ``root`` (None: the machine's own places) puts all of them under one directory."""

    name: str = "local"
    root: Path | None = None

    def checked(self) -> NodePaths:
        """Itself, or InvalidArgument for a bad name or a root too long for a socket's address."""
        check_node_name(self.name)
        if len(str(self.run / "runtime.sock").encode()) > _LONGEST_SOCKET:
            raise InvalidArgument(
                f"the path of --root is too long: {self.root}", remedy="Use one below 60 characters"
            )
        return self

    def _under(self, path: str) -> Path:
        return Path(path) if self.root is None else self.root / path.lstrip("/")

    @property
    def run(self) -> Path:
        """Sockets, lock, mount points: gone at reboot."""
        return self._under(f"/run/dsec/{self.name}")

    @property
    def data(self) -> Path:
        """Databases, layers, output, pool."""
        return self._under(f"/var/lib/dsec/{self.name}")

    @property
    def settings(self) -> Path:
        """The operator's configuration, TOML; need not exist."""
        return self._under(f"/etc/dsec/{self.name}.toml")

    @property
    def lock(self) -> Path:
        """Held by the keeper."""
        return self.run / "lock"

    @property
    def keeper_socket(self) -> Path:
        """Keeper's."""
        return self.run / "keeper.sock"

    @property
    def runtime_socket(self) -> Path:
        """Runtime's."""
        return self.run / "runtime.sock"

    @property
    def proxy_socket(self) -> Path:
        """Proxy's, for the runtime."""
        return self.run / "proxy.sock"

    @property
    def ports_socket(self) -> Path:
        """Proxy's, for the apiserver: connections to exposed ports."""
        return self.run / "ports.sock"

    @property
    def holder_socket(self) -> Path:
        """Layer holder's, for the runtime."""
        return self.run / "holder.sock"

    @property
    def fetcher_socket(self) -> Path:
        """Fetcher's, for the layer holder."""
        return self.run / "fetcher.sock"

    @property
    def edge_socket(self) -> Path:
        """Edge's."""
        return self.run / "edge.sock"

    @property
    def node_json(self) -> Path:
        """What clients of this machine read: url, token_path, node."""
        return self.run / "node.json"

    @property
    def config_json(self) -> Path:
        """The configuration in force, written by ``dsec up`` for the node's processes."""
        return self.run / "config.json"

    @property
    def runtime_json(self) -> Path:
        """The runtime's configuration, written by ``dsec up``."""
        return self.run / "runtime.json"

    @property
    def proxy_json(self) -> Path:
        """The proxy's configuration, written by ``dsec up``."""
        return self.run / "proxy.json"

    @property
    def fetcher_json(self) -> Path:
        """Where the fetcher's stores are, with what it needs to be let in; only root reads it."""
        return self.run / "fetcher.json"

    @property
    def services_json(self) -> Path:
        """The keeper's table, written by ``dsec up``."""
        return self.run / "services.json"

    @property
    def keeper_program(self) -> Path:
        """The keeper that runs: a copy of the installed one. Beside the data, since /run is often mounted noexec."""
        return self.data / "dsec-keeper"

    @property
    def draining(self) -> Path:
        """While this file is there the edge admits no creates: ``dsec down`` is at work."""
        return self.run / "draining"

    @property
    def operation_lock(self) -> Path:
        """Held by ``dsec up``, ``down`` and ``restart`` while they work; outlives the node."""
        return self.run.parent / f"{self.name}.lock"

    @property
    def token(self) -> Path:
        """The client's copy of the first token."""
        return self.data / "token"

    @property
    def node_db(self) -> Path:
        """Edge's records, per boot."""
        return self.data / "node.db"

    @property
    def catalogue_db(self) -> Path:
        """Images, layers, ended sandboxes: survives reboots."""
        return self.data / "catalogue.db"

    @property
    def iam_db(self) -> Path:
        """Principals and token hashes."""
        return self.data / "iam.db"

    @property
    def store_id(self) -> Path:
        """What tells this node's claims in a store from those of another machine's node of the same name."""
        return self.data / "store-id"

    @property
    def layers(self) -> Path:
        """This node's layer store."""
        return self.data / "layers"

    @property
    def output(self) -> Path:
        """Segments of the execs' output."""
        return self.data / "output"

    @property
    def pool_image(self) -> Path:
        """The btrfs pool."""
        return self.data / "pool.img"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.data / "logs"

    @property
    def faults(self) -> Path:
        """Where tests arm fault points, on a node whose settings allow it."""
        return self.data / "faults"

    @property
    def proxy_faults(self) -> Path:
        """The proxy's own: it looks as a user who may not see the others."""
        return self.faults / "proxy"

    @property
    def fetcher_faults(self) -> Path:
        """The fetcher's own, for the same reason."""
        return self.faults / "fetcher"

    @property
    def cgroup(self) -> str:
        """Directory below each cgroup mount."""
        return f"dsec/{self.name}"
