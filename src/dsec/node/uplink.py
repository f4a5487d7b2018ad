"""The interface through which what is routed leaves a node: where it is, and whether it hands on. Only looks."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dsec.network import NetworkUplink

__all__ = ["namespace_path", "uplink_problem"]


def namespace_path(name: str) -> Path:
    """Where ``ip netns`` keeps a namespace of this name."""
    return Path("/run/netns") / name


def uplink_problem(uplink: NetworkUplink) -> str | None:
    """Why sandboxes could not be routed through it, in a sentence; None: they could."""
    setting = f"/proc/sys/net/ipv4/conf/{uplink.interface}/forwarding"
    place = "this machine" if uplink.namespace is None else f"the network namespace {uplink.namespace!r}"
    if uplink.namespace is not None and not namespace_path(uplink.namespace).exists():
        return f"there is no network namespace {uplink.namespace!r}"
    said = _read(setting, uplink.namespace)
    if said is None:
        return f"{place} has no interface {uplink.interface!r}"
    if said.strip() != "1":
        return f"net.ipv4.conf.{uplink.interface}.forwarding of {place} is off, so that no answer comes back"
    return None


def _read(path: str, namespace: str | None) -> str | None:
    if namespace is None:
        try:
            return Path(path).read_text()
        except OSError:
            return None
    argv = ["nsenter", f"--net={namespace_path(namespace)}", "cat", path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if done.returncode == 0 else None
