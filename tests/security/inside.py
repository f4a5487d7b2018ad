"""Running attack programs inside a sandbox: each attempt gives the errno that stopped it, or its result."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import dsec

__all__ = ["IMAGE", "USERS", "attempts", "python", "stopped"]

IMAGE = "dsec/debian:12"
USERS = ("root", "1000:1000")
"""As whom attacks are tried: root has capabilities in its user namespace, a normal user other people's patience."""

_PRELUDE = '''
import ctypes, errno, fcntl, glob, json, os, resource, socket, stat, struct, time
libc = ctypes.CDLL(None, use_errno=True)
found = {}

def call(number, *arguments):
    """A raw system call; raises OSError."""
    ctypes.set_errno(0)
    sent = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *sent)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def attempt(name, function, *arguments):
    """Note what stopped it, or what it gave."""
    if only is not None and name not in only:
        return
    try:
        found[name] = function(*arguments)
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))

buffer = ctypes.create_string_buffer(8192)
'''


def stopped(result: object) -> bool:
    """Whether an attempt was stopped by an error."""
    return isinstance(result, str) and result[:1] == "E" and result.isupper()


async def attempts(
    sandbox: dsec.Sandbox, program: str, user: str | None = None, *, only: Collection[str] | None = None
) -> dict[str, Any]:
    """What the attempts of a Python program gave, by name; of all, or of these only."""
    chosen = None if only is None else sorted(only)
    source = f"{_PRELUDE}\nonly = {chosen!r}\n{program}\nprint(json.dumps(found))"
    result = await sandbox.exec("python3", "-c", source, user=user)
    assert result.exit_code == 0, result.stderr
    outcome: dict[str, Any] = json.loads(result.stdout)
    assert outcome, "the program attempted nothing"
    return outcome


async def python(sandbox: dsec.Sandbox, program: str, user: str | None = None) -> str:
    """Standard output of a Python program that must go well."""
    return (await sandbox.exec("python3", "-c", program, user=user, check=True)).stdout.strip()
