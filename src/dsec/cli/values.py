"""What users type, as values: ``512m``, ``K=V``, ``1h30m``. Pure; raises InvalidArgument."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsec.errors import InvalidArgument

__all__ = ["network", "age", "duration_s", "environment", "labels", "mib", "pairs", "size"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def mib(text: str) -> float:
    """A size as Docker writes it (``512m``, ``2g``, bytes without a unit), in MiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"not a size: {text!r}", remedy="Write it as 512m or 2g")
    size = float(match[1]) * _FACTORS[match[2].lower() or "b"]
    if size <= 0:
        raise InvalidArgument(f"a size of {text!r} leaves nothing to run in", remedy="Write it as 512m or 2g")
    return size / (1 << 20)


def duration_s(text: str) -> float:
    """A time as ``90``, ``90s``, ``15m``, ``1h30m`` or ``2d``, in seconds."""
    try:
        plain = float(text)
    except ValueError:
        match = _DURATION.fullmatch(text.strip())
        if match is None or not any(match.groups()):
            raise InvalidArgument(f"not a time: {text!r}", remedy="Write it as 90s, 15m, 1h30m or 2d") from None
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if not (math.isfinite(plain) and plain >= 0):
        raise InvalidArgument(f"not a time: {text!r}", remedy="Write it as 90s, 15m, 1h30m or 2d")
    return plain


def pairs(words: Iterable[str], *, what: str) -> dict[str, str]:
    """``K=V`` words as a dictionary."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            lacks = "name" if equals else "'='"
            raise InvalidArgument(f"{what} {word!r} has no {lacks}", remedy=f"Write the {what} as KEY=VALUE")
        found[key] = value
    return found


def labels(words: Iterable[str]) -> dict[str, str]:
    """``-l K=V`` words; a bare ``K`` is an empty label, as in Docker."""
    return pairs((word if "=" in word else f"{word}=" for word in words), what="label")


def environment(
    words: Iterable[str], files: Iterable[Path] = (), own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """``-e K=V`` and ``--env-file``; a bare ``K`` takes the caller's own value, and is left out without one."""
    here = os.environ if own is None else own
    lines: list[str] = []
    for file in files:
        try:
            text = file.read_text()
        except OSError as error:
            raise InvalidArgument(f"--env-file {file}: {error.strerror}") from None
        lines += [line for line in (raw.strip() for raw in text.splitlines()) if line and not line.startswith("#")]
    complete = []
    for word in [*lines, *words]:
        if "=" in word:
            complete.append(word)
        elif word in here:
            complete.append(f"{word}={here[word]}")
    return pairs(complete, what="variable")


def size(amount_bytes: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    amount = float(amount_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def age(seconds: float) -> str:
    """A span of time for people: ``42 s``, ``5 min``, ``3 h``, ``2 d``."""
    for unit, length, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{max(0, seconds) / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def network(text: str) -> str | dict[str, Any]:
    """A policy: ``none``, ``open``, names of groups, or ``@FILE`` with its JSON form."""
    if text in ("none", "open"):
        return text
    if text.startswith("@"):
        try:
            found = json.loads(Path(text[1:]).read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--network {text}: {error}") from None
        if not isinstance(found, dict):
            raise InvalidArgument(f"--network {text}: not a JSON object")
        return found
    return {name.strip(): True for name in text.split(",")}
