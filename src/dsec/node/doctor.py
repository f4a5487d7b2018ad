"""``dsec doctor``: what this machine has of what a node wants; what is lost without it, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.errors import DSecError, NodeError, Unsupported
from dsec.node.binaries import find_binaries
from dsec.node.config import NodeConfig, read_settings
from dsec.node.landlock import OLDEST_VERSION, landlock_version
from dsec.node.machine import OLDEST_KERNEL, check_machine, kernel_version
from dsec.node.paths import NodePaths
from dsec.node.readers import Trial, choose, tried
from dsec.node.uplink import uplink_problem

__all__ = ["Finding", "TOOLS", "Tool", "examine", "examine_settings", "install", "missing_packages"]


class Tool(msgspec.Struct, frozen=True):
    """A program or file from the distribution: its package there, and what is lost without it."""

    name: str
    package: str
    lost: str
    file: str | None = None
    """Where it lies, when it is no program."""


_HOW = {
    "filled": "filled by the kernel's pre-content events, as they are read",
    "whole": "pulled whole",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a node wants. ``lost`` and ``remedy`` are empty while it is present."""

    kind: str
    """machine, kernel, tool or program."""
    name: str
    present: bool
    detail: str = ""
    lost: str = ""
    remedy: str = ""


TOOLS = (
    Tool("mkfs.btrfs", "btrfs-progs", "no node starts: the pool of sandbox disks cannot be made"),
    Tool("skopeo", "skopeo", "no image can be pulled or imported"),
    Tool("mmdebstrap", "mmdebstrap", "the default image dsec/debian:12 cannot be built"),
    Tool("prlimit", "util-linux", "no image can be imported and no layer built"),
    Tool(
        "Debian's archive keys", "debian-archive-keyring", "the default image dsec/debian:12 cannot be built",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ),
    Tool(
        "root certificates", "ca-certificates", "no registry that speaks TLS can be reached",
        "/etc/ssl/certs/ca-certificates.crt",
    ),
)  # fmt: skip


def missing_packages() -> list[str]:
    """Distribution packages of the tools that are not there, sorted."""
    return sorted({tool.package for tool in TOOLS if _path_of(tool) is None})


def examine(paths: NodePaths | None = None) -> list[Finding]:
    """Look at machine, kernel (``dsec-runtime probe``), tools and dsec's own programs, and at a node's settings;
    changes nothing. Raises InvalidArgument for settings that cannot be read.
    """
    found = [_kernel(), _root(), _landlock(), *_tools(), *_programs_and_features()]
    return found if paths is None else [*found, *examine_settings(paths)]


def examine_settings(paths: NodePaths) -> list[Finding]:
    """What a node's settings say that no node for real work should have; raises InvalidArgument."""
    settings = read_settings(paths)
    found = [_reader(settings, paths)] if settings.stores else []
    return [*found, *_uplink(settings), *_fault_points(settings, paths)]


def _landlock() -> Finding:
    version = landlock_version()
    if version >= OLDEST_VERSION:
        return Finding(kind="kernel", name="Landlock", present=True, detail=f"version {version}")
    return Finding(
        kind="kernel",
        name="Landlock",
        present=False,
        lost="the edge, if it is subverted, writes wherever root may: nothing holds it to the node's own files",
        remedy="Boot a kernel that has it, with landlock in `lsm=`",
    )


def _reader(settings: NodeConfig, paths: NodePaths) -> Finding:
    """How layers of a store are read."""
    name = f"layers of stores (reader = {settings.reader!r})"

    def trial() -> Trial:
        try:
            return tried(find_binaries(), paths.layers)
        except DSecError as error:
            return Trial(False, error.message)

    try:
        found = choose(settings, os.environ, trial)
    except DSecError as error:
        return Finding(
            kind="settings", name=name, present=False, detail=error.message, lost="`dsec up` is refused",
            remedy=error.remedy or "",
        )  # fmt: skip
    return Finding(kind="settings", name=name, present=True, detail=f"{_HOW[found.reader]}: {found.why}")


def _uplink(settings: NodeConfig) -> list[Finding]:
    """Of a node without one nothing is wanted: rules that need it are refused."""
    uplink = settings.network.uplink
    if uplink is None:
        return []
    problem = uplink_problem(uplink)
    return [
        Finding(
            kind="settings",
            name=f"uplink {uplink.interface}",
            present=problem is None,
            detail=problem or "",
            lost="" if problem is None else 'networks with rules for "udp", "icmp" or "any" are refused',
            remedy="" if problem is None else "Make it so, or change [network.uplink] of the node's settings",
        )
    ]


def _fault_points(settings: NodeConfig, paths: NodePaths) -> list[Finding]:
    if not settings.fault_points:
        return []
    return [
        Finding(
            kind="settings",
            name="no fault points",
            present=False,
            detail=str(paths.settings),
            lost="the node looks for files of root's that let its parts die: it is one for tests of dsec",
            remedy="Remove `fault_points`, then `dsec down` and `dsec up`",
        )
    ]


def install(say: Callable[[str], None]) -> list[str]:
    """Install the missing distribution packages by apt; their names.

    Raises Unsupported where there is no apt, NodeError when apt fails.
    """
    check_machine(action="dsec doctor --install", release="999.0")
    packages = missing_packages()
    if not packages:
        return []
    if shutil.which("apt-get") is None:
        raise Unsupported(
            f"packages can be installed by apt only; missing: {', '.join(packages)}",
            phase="machine",
            remedy="Install them with your distribution's own tool",
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    say(f"installing {', '.join(packages)}")
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        ended = subprocess.run(["apt-get", *arguments], env=env, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            last = (ended.stderr.strip() or "no message").splitlines()[-1]
            raise NodeError(f"apt-get {arguments[0]} failed: {last}", remedy=f"Run apt-get {' '.join(arguments)}")
    return packages


def _kernel() -> Finding:
    release = platform.release()
    present = sys.platform == "linux" and kernel_version(release) >= OLDEST_KERNEL
    wanted = ".".join(map(str, OLDEST_KERNEL))
    return Finding(
        kind="machine",
        name=f"Linux {wanted} or newer",
        present=present,
        detail=f"{platform.system()} {release}",
        lost="" if present else "no node runs here; client and CLI do",
        remedy="" if present else f"Install a kernel from {wanted} on, or use another machine's node by DSEC_URL",
    )


def _root() -> Finding:
    present = sys.platform == "linux" and os.geteuid() == 0
    return Finding(
        kind="machine",
        name="root",
        present=present,
        lost="" if present else "`dsec up`, `down` and `restart` are refused",
        remedy="" if present else "Run dsec as root, or use a node by DSEC_URL and DSEC_TOKEN",
    )


def _tools() -> list[Finding]:
    found = []
    for tool in TOOLS:
        path = _path_of(tool)
        lost = "" if path else tool.lost
        remedy = "" if path else f"Run `dsec doctor --install` or `apt-get install {tool.package}`"
        found.append(
            Finding(
                kind="tool", name=tool.name, present=path is not None, detail=path or "", lost=lost, remedy=remedy
            )
        )
    return found


def _path_of(tool: Tool) -> str | None:
    """Tools for administration lie in places that a user's PATH may lack."""
    if tool.file is not None:
        return tool.file if Path(tool.file).exists() else None
    return shutil.which(tool.name) or shutil.which(tool.name, path="/usr/sbin:/sbin:/usr/local/sbin")


def _programs_and_features() -> list[Finding]:
    try:
        binaries = find_binaries()
    except DSecError as error:
        lost, remedy = "no node starts, and the kernel cannot be probed", error.remedy or ""
        return [Finding(kind="program", name="dsec-node-bin", present=False, lost=lost, remedy=remedy)]
    here = Finding(kind="program", name="dsec-node-bin", present=True, detail=str(binaries.runtime.parent))
    return [here, *_features(binaries.runtime)]


def _features(runtime: Path) -> list[Finding]:
    probed = subprocess.run([str(runtime), "probe"], capture_output=True, timeout=60, check=False)
    try:
        answer = msgspec.json.decode(probed.stdout)
        features = answer["features"] if isinstance(answer, dict) else answer
        return [msgspec.convert({"kind": "kernel", **feature}, Finding) for feature in features]
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError):
        said = probed.stderr.decode(errors="replace").strip()[-300:] or f"exit code {probed.returncode}"
        return [
            Finding(
                kind="kernel",
                name="probe",
                present=False,
                detail=said,
                lost="what the kernel can do is not known",
                remedy="Run as root" if os.geteuid() else "Report this as a defect",
            )
        ]
