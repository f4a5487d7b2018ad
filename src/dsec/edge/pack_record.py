"""What the edge remembers of a packing, and what it makes of a request. Pure."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dsec.api.packing import PackedLayer, PackRequest, Provenance, Residual, Residue
from dsec.edge.record import ExecRecord, SandboxRecord
from dsec.errors import InvalidArgument
from dsec.images.catalogue import LayerTag
from dsec.images.packing import DEFAULT_RULES, Report, Rule, Rules
from dsec.images.references import LayerReference, parse_layer

__all__ = [
    "AskedRules",
    "PackRecord",
    "body_of",
    "commands_of",
    "merged_below",
    "packed_layer",
    "rules_of",
    "target_of",
]

_MOST_COMMANDS = 200
_MOST_TEXT = 64 << 10
_MOST_PATTERNS = 1000
_canonical = msgspec.json.Encoder(order="sorted").encode


class PackRecord(msgspec.Struct, kw_only=True):
    """A packing, from the intent on."""

    id: str
    """That of its snapshot."""
    body: bytes
    """Hash of the canonical request."""
    at: float
    done: PackedLayer | None = None


def body_of(asked: PackRequest) -> bytes:
    """Two requests with equal ones ask for the same."""
    return hashlib.sha256(_canonical(asked)).digest()


def target_of(asked: PackRequest) -> LayerReference:
    """The tag that is asked for; raises InvalidArgument."""
    target = parse_layer(asked.reference)
    if target.kind == "base":
        raise InvalidArgument(
            f"{asked.reference}: what a sandbox wrote lies over its image", phase="pack",
            remedy=f"Pack it as workspace/{target.name}:{target.version}",
        )  # fmt: skip
    return target


class AskedRules(NamedTuple):
    """What is left out, in the order in which it is asked, and what stays whatever they say."""

    rules: tuple[Rule, ...]
    keep: tuple[str, ...]


def rules_of(asked: PackRequest, node: Residue) -> AskedRules:
    """The rules of a request on a node with these settings; raises InvalidArgument for what is no pattern.

    A request that leaves the defaults off leaves those of the node off with them.
    """
    residue = asked.residue
    if len(residue.extra) + len(residue.keep) > _MOST_PATTERNS:
        raise InvalidArgument(f"more than {_MOST_PATTERNS} patterns", phase="pack", argument="residue")
    rules: tuple[Rule, ...] = DEFAULT_RULES if residue.defaults and node.defaults else ()
    keep: tuple[str, ...] = tuple(residue.keep)
    if residue.defaults:
        rules += tuple(Rule("node", each) for each in node.extra)
        keep += tuple(node.keep)
    rules += tuple(Rule("asked for", each) for each in residue.extra)
    Rules(rules, keep)
    return AskedRules(rules, keep)


def commands_of(asked: PackRequest, execs: Iterable[ExecRecord]) -> list[str]:
    """How the layer came about: what the caller says, else what was run; raises InvalidArgument for too much text."""
    if asked.commands is not None:
        text = sum(map(len, asked.commands)) + len(asked.description)
        if text > _MOST_TEXT or len(asked.commands) > _MOST_COMMANDS:
            raise InvalidArgument(f"commands: more than {_MOST_COMMANDS}, or {_MOST_TEXT} characters", phase="pack")
        return asked.commands
    told: list[str] = []
    room = _MOST_TEXT
    # The latest, in order.
    for each in reversed(list(execs)):
        line = shlex.join(word.decode(errors="backslashreplace") for word in each.argv)
        room -= len(line)
        if room < 0 or len(told) == _MOST_COMMANDS:
            break
        told.append(line)
    return told[::-1]


def packed_layer(
    tag: LayerTag, provenance: Provenance, report: Report, *, frozen_s: float, partial: bool
) -> PackedLayer:
    """The API's form of what came of it."""
    return PackedLayer(
        reference=tag.tag,
        digest=tag.digest,
        size_bytes=tag.bytes,
        entries=report.entries,
        whiteouts=report.whiteouts,
        dropped_attributes=report.dropped_attributes,
        removed=[Residual(path=each.path, rule=each.rule, bytes=each.bytes) for each in report.removed],
        removed_files=report.removed_files,
        removed_bytes=report.removed_bytes,
        frozen_s=frozen_s,
        partial=partial,
        provenance=provenance,
    )


def merged_below(record: SandboxRecord, target: LayerReference) -> list[str]:
    """Digests of the sandbox's layers that become part of the new one: a sandbox has one workspace."""
    return [record.workspace] if target.kind == "workspace" and record.workspace is not None else []
