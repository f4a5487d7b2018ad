"""Signals by name. The numbers are those of Linux on x86-64 and arm64, whatever machine the caller is on."""

from __future__ import annotations

from dsec.errors import InvalidArgument

__all__ = ["signal_number"]

_NAMES = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
_NUMBERS = {name: number for number, name in enumerate(_NAMES, start=1)} | {"IOT": 6, "CLD": 17, "POLL": 29}
_FIRST_REALTIME, _LAST = 34, 64


def signal_number(signal: int | str) -> int:
    """A signal as 15, "15", "TERM", "SIGTERM", "RTMIN+3" or "RTMAX-1"; raises InvalidArgument."""
    if isinstance(signal, str) and not signal.isdecimal():
        number = _by_name(signal.upper().removeprefix("SIG"))
    else:
        number = int(signal)
    if number is None or not 1 <= number <= _LAST:
        raise InvalidArgument(f"no such signal: {signal!r}", remedy="Write it as KILL, SIGKILL or 9")
    return number


def _by_name(name: str) -> int | None:
    for base, first, sign in (("RTMIN", _FIRST_REALTIME, "+"), ("RTMAX", _LAST, "-")):
        if name == base:
            return first
        distance = name.removeprefix(base + sign)
        if distance != name and distance.isdecimal():
            number = first + int(sign + distance)
            return number if _FIRST_REALTIME <= number <= _LAST else None
    return _NUMBERS.get(name)
