"""Under which name a node claims layers in stores: its own name, and an ID that no other machine has."""

from __future__ import annotations

import contextlib
import os
import re
import secrets

from dsec.errors import NodeError
from dsec.node.config import NodeConfig

__all__ = ["claimant_of"]

_ID = re.compile(r"[0-9a-f]{32}")


def claimant_of(config: NodeConfig) -> str:
    """``NODE-ID``. The ID is made at the first call and lies in the node's data directory from then on.

    Most nodes are called ``local``: by names alone, one machine would give up what another one reads. Raises
    NodeError when the file is damaged.
    """
    path = config.paths.store_id
    try:
        text = path.read_text()
    except FileNotFoundError:
        _make(config)
        text = path.read_text()
    if _ID.fullmatch(text) is None:
        raise NodeError(
            f"{path} is damaged", phase="store", remedy="Remove it: the stores keep what the node claimed until now"
        )
    return f"{config.node}-{text}"


def _make(config: NodeConfig) -> None:
    path = config.paths.store_id
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with draft.open("x") as file:
            file.write(secrets.token_hex(16))
            file.flush()
            os.fsync(file.fileno())
        # Of two processes that make one, both take that of the first.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
