"""What a node has to give: the operator's numbers, else the machine's."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec

from dsec.backends.wire import NodeStats
from dsec.edge.admission import Need
from dsec.node.config import NodeConfig

__all__ = ["Machine", "capacity_of", "this_machine"]

_MIB = 1 << 20
_RESERVED_MEMORY = 1 << 30
_RESERVED_PIDS = 1024
_RESERVED_DESCRIPTORS = 512


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has."""

    memory_bytes: int
    cpus: float
    pids: int
    descriptors: int
    disk_bytes: int


def this_machine(data: Path) -> Machine:
    """Read from /proc and the file system of the node's data."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    threads = min(_number("/proc/sys/kernel/pid_max"), _number("/proc/sys/kernel/threads-max"))
    space = os.statvfs(data)
    return Machine(
        memory_bytes=pages * page,
        cpus=len(os.sched_getaffinity(0)),
        pids=threads,
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        disk_bytes=space.f_blocks * space.f_frsize,
    )


def _number(path: str) -> int:
    return int(Path(path).read_text())


def capacity_of(config: NodeConfig, machine: Machine, stats: NodeStats) -> Need:
    """What requests may add up to. ``stats`` has the pool's size once the runtime has answered."""
    memory = config.memory_mib * _MIB if config.memory_mib is not None else machine.memory_bytes - _RESERVED_MEMORY
    pool = config.pool_mib * _MIB if config.pool_mib is not None else machine.disk_bytes
    return Need(
        memory_bytes=max(memory, 0),
        cpu_milli=int((config.cpus if config.cpus is not None else machine.cpus) * 1000),
        pids=max(machine.pids - _RESERVED_PIDS, 0),
        disk_bytes=stats.pool_bytes or pool,
        descriptors=max((stats.descriptors_limit or machine.descriptors) - _RESERVED_DESCRIPTORS, 0),
        sandboxes=config.max_sandboxes,
    )
