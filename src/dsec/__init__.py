"""dsec: sandboxes for agentic training and evaluation.

    import dsec

    async with dsec.DSecClient() as client:
        async with client.sandbox("dsec/debian:12", memory_mib=1024) as sandbox:
            result = await sandbox.run_shell("python3 --version")
            print(result.exit_code, result.stdout)

``dsec.sync`` has the same names for plain Python.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dsec.api.audit import AuditEvent, AuditEvents
from dsec.api.images import ImageInfo, ImageProgress
from dsec.api.jobs import JobInfo, JobState
from dsec.api.layers import LayerInfo
from dsec.api.network import Network, NetworkInfo, NetworkRule
from dsec.api.packing import PackedLayer, Provenance, Residual, Residue
from dsec.api.snapshots import SnapshotInfo
from dsec.api.tokens import TokenCreated, TokenInfo
from dsec.api.types import (
    Ended,
    Endpoint,
    EndpointInfo,
    ExecInfo,
    ExecUsage,
    FileWritten,
    Paused,
    Pty,
    SandboxInfo,
    SandboxState,
    Status,
    StopReport,
    StoryEntry,
    Usage,
    UsageGroup,
)
from dsec.errors import (
    CallerError,
    CapacityError,
    CommandError,
    Conflict,
    DeadlineExceeded,
    Denied,
    DSecError,
    ExecFailed,
    ExecTimeout,
    ExecutableNotFound,
    Fenced,
    FileDenied,
    FileError,
    FileExists,
    FileIsDirectory,
    FileMissing,
    FileNotDirectory,
    ImageCorrupt,
    ImageError,
    ImageNotFound,
    InvalidArgument,
    NodeError,
    NotExecutable,
    NotFound,
    OutcomeUnknown,
    PlatformError,
    ProtocolError,
    QuotaExceeded,
    RegistryDenied,
    RegistryRateLimited,
    RegistryUnreachable,
    ReplayDivergence,
    SandboxGone,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnreachable,
    Unsupported,
)

if TYPE_CHECKING:
    from dsec.client.args import DSecContainerRunArgs, SandboxArgs
    from dsec.client.client import DSecClient
    from dsec.client.execs import Exec
    from dsec.client.file_records import FileEvent, FileInfo
    from dsec.client.jobs import Job
    from dsec.client.ports import Url
    from dsec.client.protecting import ProtectedPath
    from dsec.client.results import (
        Created,
        ExecResult,
        ExecStarted,
        Exited,
        Gap,
        ImageReady,
        Output,
        ProofOfDeath,
        Stderr,
        Stdout,
        Stopped,
    )
    from dsec.client.sandbox import PIPE, Sandbox
    from dsec.client.session import Session
    from dsec.client.snapshots import Snapshot
    from dsec.client.transfers import Transferred

__all__ = [
    "AuditEvent",
    "AuditEvents",
    "Residue",
    "Residual",
    "Provenance",
    "PackedLayer",
    "Network",
    "NetworkInfo",
    "NetworkRule",
    "CallerError",
    "CapacityError",
    "CommandError",
    "Conflict",
    "Created",
    "DSecClient",
    "DSecContainerRunArgs",
    "DSecError",
    "DeadlineExceeded",
    "Denied",
    "Ended",
    "Endpoint",
    "EndpointInfo",
    "Exec",
    "ExecFailed",
    "ExecInfo",
    "ExecResult",
    "ExecStarted",
    "ExecTimeout",
    "ExecUsage",
    "ExecutableNotFound",
    "Exited",
    "Fenced",
    "FileDenied",
    "FileError",
    "FileEvent",
    "FileExists",
    "FileInfo",
    "FileIsDirectory",
    "FileMissing",
    "FileNotDirectory",
    "FileWritten",
    "Gap",
    "ImageCorrupt",
    "ImageError",
    "ImageInfo",
    "ImageNotFound",
    "ImageProgress",
    "ImageReady",
    "InvalidArgument",
    "Job",
    "JobInfo",
    "JobState",
    "LayerInfo",
    "NodeError",
    "NotExecutable",
    "NotFound",
    "OutcomeUnknown",
    "Output",
    "PIPE",
    "Paused",
    "PlatformError",
    "ProofOfDeath",
    "ProtectedPath",
    "ProtocolError",
    "Pty",
    "QuotaExceeded",
    "RegistryDenied",
    "RegistryRateLimited",
    "RegistryUnreachable",
    "ReplayDivergence",
    "Sandbox",
    "SandboxArgs",
    "SandboxGone",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreUnreachable",
    "SandboxInfo",
    "SandboxState",
    "Session",
    "Snapshot",
    "SnapshotInfo",
    "Status",
    "Stderr",
    "Stdout",
    "StopReport",
    "Stopped",
    "StoryEntry",
    "TokenCreated",
    "TokenInfo",
    "Transferred",
    "Unsupported",
    "Url",
    "Usage",
    "UsageGroup",
]

_CLIENT = {
    "Created": "dsec.client.results",
    "DSecClient": "dsec.client.client",
    "DSecContainerRunArgs": "dsec.client.args",
    "Exec": "dsec.client.execs",
    "ExecResult": "dsec.client.results",
    "ExecStarted": "dsec.client.results",
    "Exited": "dsec.client.results",
    "FileEvent": "dsec.client.file_records",
    "FileInfo": "dsec.client.file_records",
    "Gap": "dsec.client.results",
    "ImageReady": "dsec.client.results",
    "Job": "dsec.client.jobs",
    "Output": "dsec.client.results",
    "PIPE": "dsec.client.sandbox",
    "ProofOfDeath": "dsec.client.results",
    "ProtectedPath": "dsec.client.protecting",
    "Sandbox": "dsec.client.sandbox",
    "SandboxArgs": "dsec.client.args",
    "Session": "dsec.client.session",
    "Snapshot": "dsec.client.snapshots",
    "Stderr": "dsec.client.results",
    "Stdout": "dsec.client.results",
    "Stopped": "dsec.client.results",
    "Url": "dsec.client.ports",
    "Transferred": "dsec.client.transfers",
}
"""Imported at first use: servers and the command line need the errors, not the HTTP library."""


def __getattr__(name: str) -> object:
    home = _CLIENT.get(name)
    if home is None:
        raise AttributeError(f"module 'dsec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
