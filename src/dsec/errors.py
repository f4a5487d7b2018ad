"""Every error that dsec raises, in one tree.

    DSecError
    ├── CallerError                     fault: caller
    │   ├── InvalidArgument (ValueError)
    │   ├── NotFound (LookupError)
    │   ├── Conflict
    │   │   └── Fenced                  a newer holder has the job
    │   ├── Denied (PermissionError)
    │   └── Unsupported
    ├── CommandError                    fault: command
    │   ├── ExecFailed                  only with check=True
    │   ├── ExecTimeout (TimeoutError)  only with check=True
    │   ├── ExecutableNotFound (FileNotFoundError)
    │   └── NotExecutable (PermissionError)
    ├── FileError (OSError)             fault: command; its subclasses are Python's own too
    │   ├── FileMissing (FileNotFoundError)
    │   ├── FileExists (FileExistsError)
    │   ├── FileIsDirectory (IsADirectoryError)
    │   ├── FileNotDirectory (NotADirectoryError)
    │   └── FileDenied (PermissionError)
    ├── ImageError                      fault: caller
    │   ├── ImageNotFound
    │   ├── RegistryRateLimited         retryable
    │   ├── RegistryDenied
    │   ├── RegistryUnreachable         retryable
    │   └── ImageCorrupt
    ├── StoreError                      fault: platform; of the place where layers are shared
    │   ├── StoreFull
    │   ├── StoreDenied
    │   └── StoreUnreachable            retryable
    ├── CapacityError                   fault: node; retryable
    ├── QuotaExceeded                   fault: caller
    ├── SandboxGone                     fault: by cause
    ├── OutcomeUnknown                  fault: node
    ├── ReplayDivergence                fault: caller
    ├── DeadlineExceeded (TimeoutError) fault: caller
    ├── NodeError                       fault: node; retryable
    ├── PlatformError                   fault: platform
    └── ProtocolError                   fault: platform

Each error carries data, never only text: ``code`` (the same word on the wire), ``fault``, ``retryable``,
``retry_after_s``, ``sandbox_id``, ``phase``, ``remedy``. A program's non-zero exit is data, not an error.
"""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

__all__ = [
    "CallerError",
    "CapacityError",
    "CommandError",
    "Conflict",
    "DSecError",
    "DeadlineExceeded",
    "Denied",
    "ExecFailed",
    "ExecTimeout",
    "ExecutableNotFound",
    "Fault",
    "Fenced",
    "FileDenied",
    "FileError",
    "FileExists",
    "FileIsDirectory",
    "FileMissing",
    "FileNotDirectory",
    "ImageCorrupt",
    "ImageError",
    "ImageNotFound",
    "InvalidArgument",
    "NodeError",
    "NotExecutable",
    "NotFound",
    "OutcomeUnknown",
    "PlatformError",
    "ProtocolError",
    "QuotaExceeded",
    "RegistryDenied",
    "RegistryRateLimited",
    "RegistryUnreachable",
    "ReplayDivergence",
    "SandboxGone",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreUnreachable",
    "Unsupported",
    "error_from_wire",
    "file_error",
]

Fault = Literal["caller", "command", "sandbox", "node", "platform"]

_FAULT_OF_CAUSE: dict[str, Fault] = {
    "stopped": "caller",
    "idle": "caller",
    "lifetime": "caller",
    "lease": "caller",
    "main-exited": "sandbox",
    "init-died": "sandbox",
}


class DSecError(Exception):
    """Base of all errors of this package.

    ``details`` holds what is particular to a kind (``errno``, ``path``, ``exec_id``, ``cause``, …) in plain
    JSON values.
    """

    code: ClassVar[str] = "error"
    fault: Fault = "platform"
    retryable: bool = False
    usual_remedy: ClassVar[str | None] = None
    """What can be done about most errors of this kind, unless one says better."""

    def __init__(
        self,
        message: str,
        *,
        sandbox_id: str | None = None,
        phase: str | None = None,
        remedy: str | None = None,
        retry_after_s: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sandbox_id = sandbox_id
        self.phase = phase
        self.remedy = remedy or self.usual_remedy
        self.retry_after_s = retry_after_s
        self.details: dict[str, Any] = details

    @property
    def is_infra(self) -> bool:
        """Whether the platform, not the caller or the program, is to blame: mask the sample, never score it."""
        return self.fault in ("node", "platform")

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return error_from_wire, (self.to_wire(),)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form, which ``error_from_wire`` turns back into the same class."""
        return {
            "code": self.code,
            "message": self.message,
            "fault": self.fault,
            "retryable": self.retryable,
            "retry_after_s": self.retry_after_s,
            "sandbox_id": self.sandbox_id,
            "phase": self.phase,
            "remedy": self.remedy,
            "details": self.details,
        }


class CallerError(DSecError):
    """The call itself is wrong; the same call will fail again."""

    code = "caller_error"
    fault: Fault = "caller"


class InvalidArgument(CallerError, ValueError):
    """An argument is malformed, out of range or impossible on this node."""

    code = "invalid_argument"


class NotFound(CallerError, LookupError):
    """No sandbox, exec, token or layer has that name or ID."""

    code = "not_found"


class Conflict(CallerError):
    """The name is taken, or the key was used with another body."""

    code = "conflict"


class Fenced(Conflict):
    """The job has a newer holder, or has ended: whatever an older one still asks is refused."""

    code = "fenced"


class Denied(CallerError, PermissionError):
    """The token is missing, wrong, expired, or may not do this."""

    code = "denied"


class Unsupported(CallerError):
    """A field, method or kernel feature that this server does not have; the message names it."""

    code = "unsupported"


class CommandError(DSecError):
    """The program in the sandbox, not the platform, failed."""

    code = "command_error"
    fault: Fault = "command"


class ExecFailed(CommandError):
    """The exit code was not 0 and ``check=True`` was asked for; ``result`` is the ExecResult."""

    code = "exec_failed"
    result: Any = None


class ExecTimeout(CommandError, TimeoutError):
    """``timeout_s`` passed and ``check=True`` was asked for; ``result`` is the ExecResult."""

    code = "exec_timeout"
    result: Any = None


class ExecutableNotFound(CommandError, FileNotFoundError):
    """The program does not exist in the sandbox (or its interpreter does not)."""

    code = "executable_not_found"


class NotExecutable(CommandError, PermissionError):
    """The program exists and cannot be executed."""

    code = "not_executable"


class FileError(DSecError, OSError):
    """A file operation in the sandbox failed; ``errno`` and ``path`` say how and where."""

    code = "file_error"
    fault: Fault = "command"

    def __init__(self, message: str, **fields: Any) -> None:
        DSecError.__init__(self, message, **fields)
        self.errno = fields.get("errno")
        self.filename = fields.get("path")
        self.strerror = message


class FileMissing(FileError, FileNotFoundError):
    """ENOENT."""

    code = "file_missing"


class FileExists(FileError, FileExistsError):
    """EEXIST."""

    code = "file_exists"


class FileIsDirectory(FileError, IsADirectoryError):
    """EISDIR."""

    code = "file_is_directory"


class FileNotDirectory(FileError, NotADirectoryError):
    """ENOTDIR."""

    code = "file_not_directory"


class FileDenied(FileError, PermissionError):
    """EACCES or EPERM."""

    code = "file_denied"


class ImageError(DSecError):
    """An image could not be had."""

    code = "image_error"
    fault: Fault = "caller"


class ImageNotFound(ImageError):
    """Neither this node nor the registry has the image."""

    code = "image_not_found"
    usual_remedy = "Check the name and the tag; `dsec images` lists what is here"


class RegistryRateLimited(ImageError):
    """The registry answered 429."""

    code = "registry_rate_limited"
    fault: Fault = "platform"
    retryable = True


class RegistryDenied(ImageError):
    """The registry wants credentials, or other ones."""

    code = "registry_denied"


class RegistryUnreachable(ImageError):
    """The registry cannot be reached, or stopped answering in the middle."""

    code = "registry_unreachable"
    fault = "platform"
    retryable = True


class ImageCorrupt(ImageError):
    """The archive is cut short or a digest does not match."""

    code = "image_corrupt"
    usual_remedy = "Fetch or save the image again"


class StoreError(DSecError):
    """The store that nodes share layers through failed; what this node has stays usable."""

    code = "store_error"
    fault = "platform"


class StoreFull(StoreError):
    """The store has no space, or its quota is used up."""

    code = "store_full"
    usual_remedy = "Free space in the store (`dsec layer gc --store NAME`), then push again: it goes on where it was"


class StoreDenied(StoreError):
    """The store refuses this node's credentials, or they may not do this."""

    code = "store_denied"
    usual_remedy = "Give the node credentials that may do this, then ask again: it goes on where it was"


class StoreUnreachable(StoreError):
    """The store cannot be reached, is not mounted, or stopped answering in the middle."""

    code = "store_unreachable"
    retryable = True


class CapacityError(DSecError):
    """The node is full and stayed full; ask again after ``retry_after_s``."""

    code = "capacity"
    fault: Fault = "node"
    retryable = True


class QuotaExceeded(DSecError):
    """The project's quota, not the node, is used up."""

    code = "quota_exceeded"
    fault: Fault = "caller"


class SandboxGone(DSecError):
    """The sandbox ended before the exec did. ``cause`` says why; ``partial`` holds the output until then."""

    code = "sandbox_gone"
    fault: Fault = "node"
    usual_remedy = "Its story says how it came to this: `dsec story SANDBOX`, or sandbox.story()"
    partial: Any = None

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.fault = _FAULT_OF_CAUSE.get(self.cause, "node")

    @property
    def cause(self) -> str:
        """stopped, idle, lifetime, lease, main-exited, init-died or lost."""
        return str(self.details.get("cause", "lost"))


class OutcomeUnknown(DSecError):
    """Whether the exec finished cannot be known. It is never run again; ``exec_id`` names it."""

    code = "outcome_unknown"
    fault: Fault = "node"
    partial: Any = None

    @property
    def exec_id(self) -> str | None:
        """The exec whose outcome is unknown."""
        return self.details.get("exec_id")


class ReplayDivergence(DSecError):
    """A replayed trajectory asked for something else than the recorded one did."""

    code = "replay_divergence"
    fault: Fault = "caller"


class DeadlineExceeded(DSecError, TimeoutError):
    """``deadline_s`` passed before the call was done; ``phase`` says where it was."""

    code = "deadline_exceeded"
    fault: Fault = "caller"


class NodeError(DSecError):
    """The node cannot be reached or failed at its work."""

    code = "node_error"
    fault: Fault = "node"
    retryable = True


class PlatformError(DSecError):
    """A defect in dsec itself."""

    code = "platform_error"


class ProtocolError(DSecError):
    """The other side sent what the protocol does not allow."""

    code = "protocol_error"


def _tree(cls: type[DSecError]) -> dict[str, type[DSecError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


_BY_CODE = _tree(DSecError)


def error_from_wire(wire: Mapping[str, Any]) -> DSecError:
    """Rebuild an error from its JSON form. An unknown code becomes the base class, with the fault it came with."""
    known = _BY_CODE.get(str(wire.get("code")), DSecError)
    error = known(
        str(wire.get("message", "unknown error")),
        sandbox_id=wire.get("sandbox_id"),
        phase=wire.get("phase"),
        remedy=wire.get("remedy"),
        retry_after_s=wire.get("retry_after_s"),
        **dict(wire.get("details") or {}),
    )
    if known is DSecError:
        error.fault = wire.get("fault") or "platform"
        error.retryable = bool(wire.get("retryable"))
    return error


def file_error(code: int, path: str, *, sandbox_id: str | None = None) -> FileError:
    """The FileError for an errno, with Python's own exception type among its bases."""
    kinds: dict[int, type[FileError]] = {
        errno_codes.ENOENT: FileMissing,
        errno_codes.EEXIST: FileExists,
        errno_codes.EISDIR: FileIsDirectory,
        errno_codes.ENOTDIR: FileNotDirectory,
        errno_codes.EACCES: FileDenied,
        errno_codes.EPERM: FileDenied,
    }
    kind = kinds.get(code, FileError)
    return kind(f"{os.strerror(code)}: {path!r}", sandbox_id=sandbox_id, errno=code, path=path)
