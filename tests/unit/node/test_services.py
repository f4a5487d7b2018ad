"""The keeper's table and the runtime's configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.services import SERVICES, proxy_config, proxy_uid, runtime_config, service_table

BINARIES = Binaries(
    Path("/opt/dsec-keeper"), Path("/opt/dsec-runtime"), Path("/opt/dsec-init"), Path("/opt/dsec-proxy")
)
CONFIG = NodeConfig(node="n1", root="/tmp/x", port=0, id_block=0x40000000)


def test_table_starts_runtime_proxy_edge_apiserver() -> None:
    """The order of the table is the order of the start."""
    assert tuple(service.name for service in service_table(CONFIG, BINARIES, {})) == SERVICES


def test_only_root_reaches_the_inner_sockets() -> None:
    """All Unix sockets are made with mode 0600; only the API listens on TCP."""
    runtime, proxy, edge, apiserver = service_table(CONFIG, BINARIES, {})
    assert proxy.listen == [
        {"unix": {"path": f"/tmp/x/run/dsec/n1/{name}.sock", "mode": 0o600}} for name in ("proxy", "ports")
    ]
    assert runtime.listen == [{"unix": {"path": "/tmp/x/run/dsec/n1/runtime.sock", "mode": 0o600}}]
    assert edge.listen == [{"unix": {"path": "/tmp/x/run/dsec/n1/edge.sock", "mode": 0o600}}]
    assert apiserver.listen == [{"tcp": {"host": "127.0.0.1", "port": 0}}]


def test_the_proxy_has_a_user_of_its_own() -> None:
    """Each node's proxy is another user, who is no sandbox's either."""
    other = msgspec.structs.replace(CONFIG, id_block=CONFIG.id_block + 4096 * 65536)
    uids = {proxy_uid(CONFIG), proxy_uid(other)}
    assert len(uids) == 2
    assert all(60_000 < uid < 0x40000000 for uid in uids)
    assert service_table(CONFIG, BINARIES, {})[1].argv == [
        "/opt/dsec-proxy",
        "serve",
        "--config",
        "/tmp/x/run/dsec/n1/proxy.json",
    ]
    assert proxy_config(CONFIG) == {"uid": proxy_uid(CONFIG), "fault_points": None}


def test_environment_is_a_fixed_list() -> None:
    """Secrets in the caller's environment do not reach the node's processes; those of stores, the edge alone."""
    for service in service_table(CONFIG, BINARIES, {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "DSEC_TOKEN": "y"}):
        assert ("PATH", "/bin") in service.env
        secrets = {name for name, _ in service.env} & {"AWS_SECRET_ACCESS_KEY", "DSEC_TOKEN"}
        assert secrets == ({"AWS_SECRET_ACCESS_KEY"} if service.name == "edge" else set())


def test_table_is_json_that_names_every_field() -> None:
    """The keeper reads the table strictly: every field is there, pairs are arrays."""
    encoded = msgspec.json.decode(msgspec.json.encode(service_table(CONFIG, BINARIES, {"PATH": "/bin"})))
    assert set(encoded[0]) == {"name", "argv", "env", "log", "listen", "cgroups"}
    assert encoded[0]["env"] == [["PATH", "/bin"]]


def test_runtime_reads_shared_layers_after_its_own() -> None:
    """A layer that both stores have comes from the node's own."""
    config = msgspec.structs.replace(CONFIG, shared_layers="/srv/store")
    wire = runtime_config(config, BINARIES, pool_mib=2048)
    assert wire["layers_dirs"] == ["/tmp/x/var/lib/dsec/n1/layers", "/srv/store/layers"]
    assert wire["cgroup_root"] == "dsec/n1"
    assert wire["pool_mib"] == 2048
