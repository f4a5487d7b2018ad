"""What decoding can raise for bytes that are not one's own."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["MALFORMED"]

MALFORMED: Final = (msgspec.DecodeError, RecursionError)
"""No value of the type that is wanted, or one that nests too deeply: msgspec says that by a RecursionError."""
