"""Everything on the machine that belongs to a node which is up: the same after a death and its repair."""

from __future__ import annotations

from pathlib import Path

from dsec.node.config import load_config
from dsec.node.leaks import loop_devices, node_mounts
from dsec.testing.node import RunningNode

__all__ = ["traces"]

_IDS_OF_A_NODE = 4096 << 16


def traces(node: RunningNode) -> list[str]:
    """Processes, mounts, loop devices and files of the node, by name, sorted; each as often as it is there.

    A process is the node's by its user, cgroup, program or arguments: an orphan is seen whatever it became.
    """
    paths = node.paths
    found = [f"process {name}" for name in _processes(node)]
    found += [f"mount {point}" for point in node_mounts(paths)]
    found += [f"mount {point} of the layers" for point in _layer_mounts(node)]
    found += ["loop device" for _ in loop_devices(paths)]
    found += [f"file {each}" for directory in (paths.run, paths.data) for each in directory.iterdir()]
    return sorted(found)


def _processes(node: RunningNode) -> list[str]:
    first = load_config(node.paths.config_json).id_block
    group, program = f"/{node.paths.cgroup}/", node.paths.keeper_program.stat()
    places = (str(node.paths.run), str(node.paths.data))
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            ours = first <= process.stat().st_uid < first + _IDS_OF_A_NODE
            ours = ours or any(place in word for word in argv for place in places)
            ours = ours or group in (process / "cgroup").read_text()
            executed = (process / "exe").stat()
            ours = ours or (executed.st_dev, executed.st_ino) == (program.st_dev, program.st_ino)
        except OSError:  # a kernel thread, or one that has just ended
            continue
        if ours:
            found.append(next((word for word in argv if word.startswith("dsec.")), Path(argv[0]).name))
    return found


def _layer_mounts(node: RunningNode) -> list[str]:
    """Those of the runtime's own thread for objects."""
    pid, run = node.services()["runtime"].pid, str(node.paths.run)
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("objects"):
            lines = (task / "mountinfo").read_text().splitlines()
            return [point for line in lines if (point := line.split()[4]).startswith(run)]
    raise AssertionError("the runtime has no thread for objects")
