"""``dsec up``: from nothing, or from what a dead keeper left, to a node whose API answers."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dsec.errors import Conflict, InvalidArgument, NodeError
from dsec.node.binaries import Binaries, find_binaries
from dsec.node.certificate import fingerprint
from dsec.node.config import NodeConfig, load_config, read_settings
from dsec.node.formats import check_databases, settle_databases
from dsec.node.id_block import claim_block
from dsec.node.keeper_client import KeeperControl
from dsec.node.keeper_process import start_keeper
from dsec.node.layers_group import layers_group
from dsec.node.machine import check_machine
from dsec.node.paths import NodePaths
from dsec.node.prepare import boot_id, group_id, note_node, prepare
from dsec.node.readers import choose, tried
from dsec.node.repair import revive
from dsec.node.services import services_of
from dsec.node.survey import Survey, operation, part_answers, survey, url_of
from dsec.node.sweep import sweep

__all__ = ["UpOptions", "UpReport", "up"]

_POLL_S = 0.02
_MAX_RESTARTS = 3


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of ``dsec up``; None leaves what the settings file says."""

    paths: NodePaths
    host: str | None = None
    port: int | None = None
    group: str | None = None
    pool_mib: int | None = None
    shared_layers: str | None = None
    tls: bool = False
    """Speak TLS, with the node's own certificate where the settings name none."""
    plaintext: bool = False
    timeout_s: float = 60.0


class UpReport(msgspec.Struct, frozen=True, kw_only=True):
    """The node that is up."""

    node: str
    url: str
    token_path: str
    repaired: str | None
    """What was wrong before, when the node was half-dead."""
    took_s: float
    trust: str | None = None
    """Of the API's certificate, with TLS: what clients elsewhere set DSEC_TRUST to."""


def up(options: UpOptions, say: Callable[[str], None] = lambda _: None) -> UpReport:
    """Bring the node up and return once its API answers.

    Raises Conflict when it is up already or another operation is at work, InvalidArgument for settings that cannot
    be, Unsupported or Denied (phase ``machine``) for a machine that cannot hold a node, NodeError when a part does
    not start.
    """
    check_machine()
    began = time.monotonic()
    paths = options.paths.checked()
    config = _settled(options)
    binaries = find_binaries()
    reading = choose(config, os.environ, lambda: tried(binaries, paths.layers))
    config = msgspec.structs.replace(config, reading=reading.reader, reading_why=reading.why)
    with operation(paths):
        found = survey(paths)
        if found.state == "whole":
            raise Conflict(
                f"node {paths.name!r} is up already, at {found.url}",
                remedy="Use it, restart parts with `dsec restart`, or end it with `dsec down`",
            )
        if found.state == "broken" and found.services:
            return _repair(options, binaries, found, say, began)
        config = msgspec.structs.replace(config, id_block=claim_block(paths), boot_id=boot_id())
        repaired = _clear_way(paths, found, say)
        settle_databases(paths, say)
        try:
            config = msgspec.structs.replace(config, layers_groups=layers_group(config))
            prepare(config, binaries)
            start_keeper(config, binaries)
            url = _wait_answer(config, deadline=began + options.timeout_s)
        except BaseException:
            sweep(paths)
            raise
        note_node(config, url)
    return UpReport(
        node=paths.name, url=url, token_path=str(paths.token), repaired=repaired, took_s=time.monotonic() - began,
        trust=fingerprint(config),
    )  # fmt: skip


def _repair(
    options: UpOptions, binaries: Binaries, found: Survey, say: Callable[[str], None], began: float
) -> UpReport:
    """The keeper lives: keep the node's settings and its sandboxes, start anew what does not answer."""
    config = load_config(options.paths.config_json)
    for name, value in _flags(options).items():
        if getattr(config, name) != value:
            raise Conflict(
                f"node {config.node!r} is half-dead and runs with {name} = {getattr(config, name)!r}",
                remedy="Repair it without flags, or run `dsec down` first",
            )
    check_databases(config.paths)
    say(f"repairing node {config.node}: {found.fault}")
    revive(config, binaries, found, say, timeout_s=options.timeout_s)
    url = _wait_answer(config, deadline=began + options.timeout_s)
    note_node(config, url)
    took_s = time.monotonic() - began
    return UpReport(
        node=config.node, url=url, token_path=str(config.paths.token), repaired=found.fault, took_s=took_s,
        trust=fingerprint(config),
    )  # fmt: skip


def _settled(options: UpOptions) -> NodeConfig:
    """The settings with the flags over them."""
    config = msgspec.structs.replace(read_settings(options.paths), **_flags(options))
    if not 0 <= config.port < 65536:
        raise InvalidArgument(f"no such port: {config.port}", remedy="Use 1 to 65535, or 0 for a free one")
    try:
        ipaddress.ip_address(config.host)
    except ValueError:
        raise InvalidArgument(f"no IP address: {config.host!r}", remedy="Use 127.0.0.1, 0.0.0.0 or ::1") from None
    if not ipaddress.ip_address(config.host).is_loopback and not config.has_tls and not config.plaintext:
        raise InvalidArgument(
            f"{config.host} is reached from other machines, and tokens would cross the network in plain text",
            remedy="`dsec up --tls`, [tls] in the settings, or `plaintext = true` where something in front has TLS",
        )
    if config.group is not None:
        group_id(config.group)
    if not 1 <= config.max_sandboxes <= 4096:
        raise InvalidArgument(f"max_sandboxes is {config.max_sandboxes}", remedy="Use 1 to 4096")
    return config


def _flags(options: UpOptions) -> dict[str, Any]:
    """The flags that were given."""
    names = ("host", "port", "group", "pool_mib", "shared_layers")
    flags: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.tls and (given := read_settings(options.paths).tls).certificate is None:
        flags["tls"] = msgspec.structs.replace(given, generate=True)
    if options.plaintext:
        flags["plaintext"] = True
    return flags


def _clear_way(paths: NodePaths, found: Survey, say: Callable[[str], None]) -> str | None:
    """Sweep what a dead keeper left, and say what was wrong."""
    fault = found.fault or ("its keeper has died" if paths.node_json.exists() else None)
    if fault is not None:
        say(f"repairing node {paths.name}: {fault}")
    sweep(paths)
    return fault


def _wait_answer(config: NodeConfig, *, deadline: float) -> str:
    """Poll until API and edge answer; a part that keeps dying ends the wait with the end of its log."""
    with KeeperControl(config.paths.keeper_socket) as keeper:
        while True:
            services = keeper.services()
            url = url_of(services, "https" if config.has_tls else "http")
            running = url is not None and all(service.pid for service in services)
            if running and all(part_answers(config.paths, part) for part in ("apiserver", "edge")):
                return str(url)
            dying = next((service.name for service in services if service.restarts >= _MAX_RESTARTS), None)
            if dying is not None or time.monotonic() >= deadline:
                raise _not_up(config, dying)
            time.sleep(_POLL_S)


def _not_up(config: NodeConfig, dying: str | None) -> NodeError:
    if dying is None:
        silent = [part for part in services_of(config) if not part_answers(config.paths, part)]
        return NodeError(
            f"not answering in time: {', '.join(silent) or 'the node'}", remedy=f"Look into {config.paths.logs}"
        )
    log = config.paths.logs / f"{dying}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
    last = re.sub(r"^dsec\.errors\.\w+: ", "", last.strip())
    return NodeError(f"the node's {dying} does not start: {last[-400:]}", remedy=f"Its log is {log}")
