"""Which host IDs a node's sandboxes use: one block of 4,096 ranges a node, disjoint under a machine-wide lock.

The register is ``/run/dsec/nodes.json``, whatever ``--root`` a node has: IDs and cgroups are the machine's.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dsec.errors import CapacityError, Conflict
from dsec.node.leaks import cgroup_processes, node_cgroups
from dsec.node.paths import NodePaths
from dsec.node.survey import is_locked

__all__ = ["BLOCKS", "FIRST_ID", "IDS_PER_NODE", "Claim", "choose", "claim_block", "release_block"]

FIRST_ID = 0x40000000
IDS_PER_NODE = 4096 * 65536
BLOCKS = (0xFFFFFFFF - FIRST_ID) // IDS_PER_NODE
"""Whole blocks below the ID that means "none" (2**32 - 1)."""
_REGISTER = Path("/run/dsec")


class Claim(msgspec.Struct, frozen=True):
    """A node's block: its first ID, and where the node is."""

    block: int
    node: str
    run: str


def choose(claims: list[Claim], name: str, run: str, alive: Callable[[Claim], bool]) -> tuple[int, list[Claim]]:
    """The block for a node, and the register with it.

    A node keeps its block while it is registered; blocks of dead nodes are given away last-come. Raises Conflict when
    a live node of the same name has another place, CapacityError when all blocks are taken.
    """
    own = next((claim for claim in claims if claim.run == run), None)
    others = [claim for claim in claims if claim.run != run and alive(claim)]
    twin = next((claim for claim in others if claim.node == name), None)
    if twin is not None:
        raise Conflict(
            f"a node named {name!r} runs already, in {twin.run}", remedy="Choose another name with `--node NAME`"
        )
    taken = {claim.block for claim in others}
    free = [FIRST_ID + index * IDS_PER_NODE for index in range(BLOCKS)]
    wanted = [own.block] if own is not None else []
    block = next((block for block in [*wanted, *free] if block not in taken), None)
    if block is None:
        raise CapacityError(
            f"this machine runs {len(taken)} nodes already, all ID ranges are in use",
            remedy="Stop a node with `dsec down --node NAME`",
        )
    return block, [*others, Claim(block, name, run)]


def claim_block(paths: NodePaths) -> int:
    """First host ID of the node's block, registered as the node's; called with the node's operation lock held."""
    with _register() as register:
        block, claims = choose(_read(register), paths.name, str(paths.run), _is_alive)
        _write(register, claims)
    return block


def release_block(paths: NodePaths) -> None:
    """The node is down and nothing of it runs: its block is free."""
    with _register() as register:
        _write(register, [claim for claim in _read(register) if claim.run != str(paths.run)])


def _is_alive(claim: Claim) -> bool:
    """Whether a keeper, an operation (``dsec up`` before its keeper runs) or a left process may use the IDs."""
    root = Path(claim.run).parents[2]
    paths = NodePaths(claim.node, None if root == Path("/") else root)
    if is_locked(paths.lock) or is_locked(paths.operation_lock):
        return True
    return any(cgroup_processes(cgroup) for cgroup in node_cgroups(paths))


@contextmanager
def _register() -> Iterator[Path]:
    _REGISTER.mkdir(mode=0o711, parents=True, exist_ok=True)
    with (_REGISTER / "nodes.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _REGISTER / "nodes.json"


def _read(register: Path) -> list[Claim]:
    try:
        return msgspec.json.decode(register.read_bytes(), type=list[Claim])
    except FileNotFoundError:
        return []


def _write(register: Path, claims: list[Claim]) -> None:
    partial = register.with_suffix(".new")
    partial.write_bytes(msgspec.json.encode(claims))
    partial.replace(register)
