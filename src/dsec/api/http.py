"""The HTTP form of errors: one status per class, one body."""

from __future__ import annotations

from typing import Any

from dsec import errors

__all__ = ["error_body", "status_of"]

_STATUS: dict[str, int] = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "denied": 403,
    "not_found": 404,
    "image_not_found": 404,
    "file_missing": 404,
    "conflict": 409,
    "sandbox_gone": 410,
    "unsupported": 422,
    "registry_rate_limited": 429,
    "quota_exceeded": 429,
    "platform_error": 500,
    "node_error": 502,
    "registry_unreachable": 502,
    "store_denied": 502,
    "store_unreachable": 502,
    "capacity": 503,
    "deadline_exceeded": 504,
    "store_full": 507,
}


def status_of(error: errors.DSecError) -> int:
    """The HTTP status of an error: that of its class, else 400 for the caller's or the program's fault, else 500."""
    known = _STATUS.get(error.code)
    if known is not None:
        return known
    return 400 if error.fault in ("caller", "command", "sandbox") else 500


def error_body(error: errors.DSecError) -> dict[str, Any]:
    """The JSON body of an error answer."""
    return {"error": error.to_wire()}
