"""Repairing a half-dead node: what does not answer is started anew; the keeper, and so every sandbox, lives on."""

from __future__ import annotations

import time
from collections.abc import Callable

from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig
from dsec.node.restart import renew_files, restart_part
from dsec.node.services import services_of
from dsec.node.survey import Survey, part_answers

__all__ = ["revive"]


def revive(
    config: NodeConfig, binaries: Binaries, found: Survey, say: Callable[[str], None], *, timeout_s: float
) -> list[str]:
    """Restart every part that is down or does not answer, in the order of their start; which ones.

    Raises NodeError when one does not come back.
    """
    running = {service.name for service in found.services if service.pid}
    revived = []
    for part in services_of(config):
        if part in running and part_answers(config.paths, part):
            continue
        say(f"starting {part} anew")
        renew_files(config, binaries, [part])
        restart_part(config, binaries, part, deadline=time.monotonic() + timeout_s)
        revived.append(part)
    return revived
