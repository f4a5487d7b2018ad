"""The keeper's table and the runtime's configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsec.errors import InvalidArgument
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig, StoreSettings, read_settings
from dsec.node.fetching import fetcher_config
from dsec.node.paths import NodePaths
from dsec.node.services import (
    SERVICES,
    apiserver_uid,
    edge_uid,
    fetcher_uid,
    proxy_config,
    proxy_uid,
    runtime_config,
    service_table,
    services_of,
)

BINARIES = Binaries(
    *(Path(f"/opt/dsec-{name}") for name in ("keeper", "runtime", "init", "proxy", "holder", "fetcher"))
)
CONFIG = NodeConfig(node="n1", root="/tmp/x", port=0, id_block=0x40000000)
ON_DEMAND = msgspec.structs.replace(
    CONFIG,
    reading="filled",
    stores={
        "far": StoreSettings(url="s3://bucket/pre", endpoint="http://s3:1"),
        "near": StoreSettings(url="file:///mnt/dfs", default=True),
    },
)


def test_table_starts_runtime_proxy_edge_apiserver() -> None:
    """The order of the table is the order of the start."""
    assert tuple(service.name for service in service_table(ON_DEMAND, BINARIES, {})) == SERVICES
    assert services_of(ON_DEMAND) == SERVICES


def test_a_node_that_pulls_layers_whole_has_neither_holder_nor_fetcher() -> None:
    """Nothing runs that nobody needs, and the runtime is told of no holder."""
    names = tuple(service.name for service in service_table(CONFIG, BINARIES, {}))
    assert names == services_of(CONFIG) == ("runtime", "proxy", "edge", "apiserver")
    assert runtime_config(CONFIG, BINARIES, pool_mib=1)["holder_socket"] is None


def test_holder_and_fetcher_come_first() -> None:
    """Before the runtime, which mounts; the fetcher is a user of its own. Only root reaches their sockets."""
    holder, fetcher = service_table(ON_DEMAND, BINARIES, {})[:2]
    run = "/tmp/x/run/dsec/n1"
    assert holder.argv == [
        "/opt/dsec-holder", "serve", "--keeper", f"{run}/keeper.sock", "--fetcher", f"{run}/fetcher.sock"
    ]  # fmt: skip
    assert fetcher.argv[1:] == ["serve", "--uid", str(fetcher_uid(ON_DEMAND)), "--config", f"{run}/fetcher.json"]
    assert fetcher_uid(ON_DEMAND) != proxy_uid(ON_DEMAND)
    faulty = msgspec.structs.replace(ON_DEMAND, fault_points=True)
    assert service_table(faulty, BINARIES, {})[0].argv[-2:] == ["--faults", "/tmp/x/var/lib/dsec/n1/faults"]
    for service in (holder, fetcher):
        assert service.listen == [{"unix": {"path": f"{run}/{service.name}.sock", "mode": 0o600}}]
    assert runtime_config(ON_DEMAND, BINARIES, pool_mib=1)["holder_socket"] == f"{run}/holder.sock"


def test_the_fetcher_asks_the_default_store_first() -> None:
    """It gets all stores, with the credentials of whoever brings the node up."""
    secrets = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/nonexistent"}
    told = fetcher_config(ON_DEMAND, secrets)
    assert told["fault_points"] is None
    near, far = told["stores"]
    assert near == {"directory": {"path": "/mnt/dfs"}}
    assert far == {
        "bucket": {
            "bucket": "bucket", "prefix": "pre", "endpoint": "http://s3:1", "region": "us-east-1",
            "access_key_id": "k", "secret_access_key": "s",
        }
    }  # fmt: skip


@pytest.mark.parametrize("name", ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"])
def test_credentials_that_only_the_edge_can_get_are_refused(name: str) -> None:
    """A store that could be pulled from, but not read on demand, is told before the node is up."""
    with pytest.raises(InvalidArgument, match=name):
        fetcher_config(ON_DEMAND, {name: "x", "HOME": "/nonexistent"})


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
    assert proxy_config(CONFIG) == {
        "uid": proxy_uid(CONFIG), "ports_uid": apiserver_uid(CONFIG), "ports_domain": "localhost",
        "fault_points": None, "resolvers": [],
    }  # fmt: skip


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


@pytest.mark.parametrize(
    "domain", ["Ports.example", "*.ports.example", ".ports", "ports.", "a..b", "-a.b", "a b", ""]
)
def test_a_domain_for_ports_is_a_plain_name(tmp_path: Path, domain: str) -> None:
    """It becomes part of hosts and of a certificate: anything but a name is refused, by the name of the field."""
    paths = NodePaths("n1", tmp_path)
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text('ports_domain = "ports.example"\n')
    assert read_settings(paths).ports_domain == "ports.example"
    paths.settings.write_text(f'ports_domain = "{domain}"\n')
    with pytest.raises(InvalidArgument, match="ports_domain"):
        read_settings(paths)


def test_each_part_that_gives_up_root_has_a_user_of_its_own() -> None:
    """Below the first ID of any sandbox, and another one on each of the machine's nodes."""
    nodes = [msgspec.structs.replace(CONFIG, id_block=0x40000000 + index * 0x10000000) for index in range(12)]
    users = {user(node) for node in nodes for user in (proxy_uid, fetcher_uid, apiserver_uid, edge_uid)}
    assert len(users) == 48 and all(0x3FFFFC00 <= user < 0x40000000 for user in users)
