"""How a node reads the layers of its stores: by a trial of the kernel, or as its settings say; and why."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dsec.errors import DSecError, Unsupported
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.fetching import fetcher_config

__all__ = ["Reading", "Trial", "choose", "tried"]

_FEATURE = "pre-content events"
_TRIAL_S = 60


class Trial(msgspec.Struct, frozen=True):
    """Whether the kernel fills a file while EROFS reads it, and what was seen."""

    present: bool
    detail: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What ``reader`` came to."""

    reader: Literal["filled", "whole"]
    why: str


class _Feature(msgspec.Struct):
    name: str
    present: bool
    detail: str = ""


class _Features(msgspec.Struct):
    features: list[_Feature]


def choose(config: NodeConfig, environment: Mapping[str, str], trial: Callable[[], Trial]) -> Reading:
    """How this node reads layers. Pure but for ``trial``, which is asked only where it decides.

    Raises Unsupported for a reader that is asked for by name and cannot be had, InvalidArgument for settings that
    contradict themselves.
    """
    if config.reader == "mounted":
        raise Unsupported(
            'reader = "mounted" is not built: stores hold compressed packs, which no kernel mounts',
            phase="settings",
            remedy='Use reader = "filled", or "whole" on an older kernel',
        )
    if config.reader == "whole":
        return Reading(reader="whole", why="as the settings say")
    if not config.stores:
        return Reading(reader="whole", why="there is no store to read from")
    if config.reader == "filled":
        fetcher_config(config, environment)
        found = trial()
        if not found.present:
            raise Unsupported(
                f'reader = "filled": this machine cannot fill layers while they are read ({found.detail})',
                phase="settings",
                remedy='Use a kernel with EROFS and pre-content events, or reader = "auto" or "whole"',
            )
        return Reading(reader="filled", why=f"as the settings say; {found.detail}")
    try:
        fetcher_config(config, environment)
    except DSecError as error:
        return Reading(reader="whole", why=error.message)
    found = trial()
    return Reading(reader="filled" if found.present else "whole", why=found.detail)


def tried(binaries: Binaries, layers: Path) -> Trial:
    """Try it on the file system that the layers lie on: the nearest directory there is. Changes nothing."""
    directory = next(each for each in (layers, *layers.parents) if each.is_dir())
    argv = [str(binaries.runtime), "probe", "--layers", str(directory)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TRIAL_S, check=False)
        features = msgspec.json.decode(done.stdout, type=_Features).features
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return Trial(False, f"it could not be tried: {error}")
    found = next((each for each in features if each.name == _FEATURE), None)
    return Trial(False, "it was not tried") if found is None else Trial(found.present, found.detail)
