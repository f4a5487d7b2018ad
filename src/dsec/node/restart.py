"""``dsec restart``: put the installed version of a part in place; sandboxes and their execs go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from dsec.errors import InvalidArgument, NodeError
from dsec.node.binaries import Binaries, find_binaries
from dsec.node.certificate import ensure_certificate
from dsec.node.config import NodeConfig, load_config
from dsec.node.fetching import write_fetcher_json
from dsec.node.formats import check_databases
from dsec.node.keeper_client import KeeperControl
from dsec.node.keeper_process import private_keeper, write_proxy_json, write_table
from dsec.node.machine import check_machine
from dsec.node.paths import NodePaths
from dsec.node.prepare import note_node
from dsec.node.services import SERVICES, edge_uid, keeper_definition, service_table, services_of, uplink_of
from dsec.node.survey import node_url, operation, part_answers

__all__ = ["PARTS", "renew_files", "restart", "restart_part"]

PARTS = (*SERVICES, "keeper")
_POLL_S = 0.01


def restart(
    paths: NodePaths,
    parts: tuple[str, ...] = (),
    *,
    say: Callable[[str], None] = lambda _: None,
    timeout_s: float = 30.0,
) -> list[str]:
    """Restart the named parts (all when none is named) one after the other, each until it answers; the parts' names.

    Raises InvalidArgument for an unknown part, NodeError when the node is not up or a part does not come back.
    """
    check_machine(action="dsec restart")
    paths.checked()
    for part in parts:
        if part not in PARTS:
            raise InvalidArgument(f"no such part: {part!r}", remedy=f"Use {', '.join(PARTS)}")
    with operation(paths):
        try:
            config = load_config(paths.config_json)
        except FileNotFoundError:
            raise NodeError(f"node {paths.name!r} is not up", remedy="Run `dsec up`") from None
        own = ("keeper", *services_of(config))
        absent = [part for part in parts if part not in own]
        if absent:
            raise InvalidArgument(f"this node has no {absent[0]}", remedy=f"Use {', '.join(own)}")
        chosen = [part for part in own if not parts or part in parts]
        binaries = find_binaries()
        check_databases(paths)
        renew_files(config, binaries, chosen)
        if "apiserver" in chosen:
            ensure_certificate(config)
        if "fetcher" in chosen:
            write_fetcher_json(config)
        for part in chosen:
            say(f"restarting {part}")
            restart_part(config, binaries, part, deadline=time.monotonic() + timeout_s)
        if "apiserver" in chosen:
            note_node(config, node_url(paths))  # its certificate may be another one now
    return chosen


def restart_part(config: NodeConfig, binaries: Binaries, part: str, *, deadline: float) -> None:
    """One part, until it answers."""
    if part == "keeper":
        definition = keeper_definition(private_keeper(config, binaries))
    else:
        definition = next(one for one in service_table(config, binaries) if one.name == part)
    with KeeperControl(config.paths.keeper_socket) as keeper:
        keeper.restart(part, definition)
    while not part_answers(config.paths, part):
        if time.monotonic() >= deadline:
            raise NodeError(
                f"{part} does not come back", remedy=f"Its log is {config.paths.logs / f'{part}.log'}", part=part
            )
        time.sleep(_POLL_S)


def renew_files(config: NodeConfig, binaries: Binaries, chosen: Sequence[str]) -> None:
    """The runtime's file names the installed init; the table is what a keeper reads that is started anew.

    Whom runtime and proxy admit is told with their own restart: who asks them takes the file for what they know.
    The fetcher's file is left alone: it holds the credentials of whom it was made for.
    """
    runtime = msgspec.json.decode(config.paths.runtime_json.read_bytes(), type=dict[str, object])
    runtime["init_path"] = str(binaries.init)
    runtime["python"] = sys.executable
    if "runtime" in chosen:
        runtime["edge_uid"] = edge_uid(config)
        runtime["uplink"] = uplink_of(config.network.uplink)
    partial = config.paths.runtime_json.with_suffix(".new")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(runtime)))
    partial.replace(config.paths.runtime_json)
    write_table(config, binaries)
    if "proxy" in chosen:
        write_proxy_json(config)
