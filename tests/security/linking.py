"""What attacks on links run inside, and how they are told what came of it."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import dsec

from .reaching import run

__all__ = [
    "CALL",
    "CONFIGURATION",
    "LONG",
    "PING",
    "REFUSED",
    "SEND",
    "SHORT",
    "Route",
    "dropped",
    "entered",
    "held",
    "routed",
    "send",
]

CONFIGURATION = """
def ioctl(number, flags=b""):
    request = b"eth0".ljust(16, b"\\0") + flags.ljust(24, b"\\0")
    return fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), number, request) and 0

def netlink(protocol, kind, body):
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    sock.send(struct.pack("=IHHII", 16 + len(body), kind, 5, 1, 0) + body)
    code = struct.unpack_from("=i", sock.recv(4096), 16)[0]
    if code:
        raise OSError(-code, "")

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

index = socket.if_nametoindex("eth0")
attempt("down", ioctl, 0x8914)
attempt("address", ioctl, 0x8916, struct.pack("=HH4s", 2, 0, b"\\x0a\\0\\0\\1"))
attempt("hardware", ioctl, 0x8924, struct.pack("=H6s", 1, b"\\2\\0\\0\\0\\0\\7"))
attempt("rename", ioctl, 0x8923, b"eth1")
attempt("delete", netlink, 0, 17, struct.pack("=BxHiII", 0, 0, index, 0, 0))
attempt("move", netlink, 0, 16, struct.pack("=BxHiIIHHi", 0, 0, index, 0, 0, 8, 19, os.getpid()))
attempt("route", netlink, 0, 24, struct.pack("=8BI", 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack("=HHi", 8, 4, index))
where = struct.pack("=HH4s", 8, 1, b"\\x0a\\0\\0\\1")
attempt("neighbour", netlink, 0, 28, struct.pack("=BxxxiHBB", 2, index, 128, 0, 1) + where)
attempt("rules", netlink, 12, 2563, struct.pack("=BBH", 1, 0, 0))
attempt("remember", netlink, 12, 258, struct.pack("=BBH", 2, 0, 0))
attempt("packets", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)
attempt("transparent", lambda: socket.socket(2, 2).setsockopt(socket.SOL_IP, 19, 1))
attempt("mark", lambda: socket.socket(2, 2).setsockopt(socket.SOL_SOCKET, 36, 1))
for name in ("forwarding", "accept_local", "rp_filter", "route_localnet"):
    attempt(name, write, f"/proc/sys/net/ipv4/conf/eth0/{name}", "1")
"""
SEND = """
import socket, sys
address, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
udp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(float(sys.argv[4]))
try:
    if source == "pktinfo":
        info = bytes(4) + socket.inet_aton(sys.argv[5]) + bytes(4)
        udp.sendmsg([b"x"], [(socket.IPPROTO_IP, 8, info)], 0, (address, port))
    else:
        if source:
            udp.bind((source, 0))
        udp.sendto(b"x" * int(sys.argv[5] if len(sys.argv) > 5 else 1), (address, port))
    print(udp.recv(1000).decode())
except OSError as error:
    print("refused", type(error).__name__)
"""
CALL = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as conn:
        conn.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print(conn.recv(1000).decode().split("\\n")[0])
except OSError as error:
    print("refused", type(error).__name__)
"""
PING = """
import socket, sys
try:
    icmp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    icmp.settimeout(float(sys.argv[2]))
    icmp.sendto(bytes([int(sys.argv[3]), 0, 0, 0, 0, 1, 0, 1]), (sys.argv[1], 0))
    print("type", icmp.recv(1000)[0])
except OSError as error:
    print("refused", type(error).__name__)
"""
HOLDING = """
import socket, sys
kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
conn.settimeout(3)
conn.connect((address, port))
if kind == "tcp":
    conn.recv(100)
print("open", conn.getsockname()[1], flush=True)
for line in sys.stdin:
    try:
        if line == "send\\n":
            conn.send(b"ping")
        print("answered" if conn.recv(100) else "cut", flush=True)
    except OSError as error:
        print("cut", flush=True)
"""
REFUSED = "refused PermissionError"
SHORT, LONG = "0.5", "20"
Route = tuple[Literal["tcp", "udp", "icmp", "any"], str | None, tuple[int | str, ...]]
"""A rule that allows: protocol, addresses, ports."""


def routed(*rules: Route, **more: Any) -> dsec.Network:
    """A policy of these rules."""
    made = [dsec.NetworkRule(action="allow", protocol=p, addresses=a, ports=w) for p, a, w in rules]
    return dsec.Network(rules=tuple(made), **more)


async def send(sandbox: dsec.Sandbox, address: str, port: int, source: str = "", *more: str, wait: str = LONG) -> str:
    """What is answered to a datagram."""
    return await run(sandbox, SEND, address, str(port), source, wait, *more)


async def dropped(sandbox: dsec.Sandbox) -> dict[str, int]:
    """Packets that its link has dropped, by reason."""
    found: dict[str, int] = {}
    for event in (await sandbox.events()).events:
        if event.kind == "packet":
            found[event.reason] = found.get(event.reason, 0) + event.count
    return found


@contextlib.asynccontextmanager
async def held(sandbox: dsec.Sandbox, kind: str, address: str, port: int) -> AsyncIterator[Any]:
    """A connected socket inside: call with ``send`` or ``hear`` for whether an answer comes; ``port`` is its own."""
    program = await sandbox.spawn("python3", "-c", HOLDING, kind, address, str(port), stdin="pipe")
    lines = program.lines()
    own = (await anext(lines)).split()
    assert own[0] == "open"

    async def ask(what: str) -> str:
        await program.stdin.write(f"{what}\n".encode())
        return (await anext(lines)).strip()

    yield ask, int(own[1])
    await program.kill(grace_s=0)


@contextlib.asynccontextmanager
async def entered(sandbox: dsec.Sandbox) -> AsyncIterator[Callable[..., str]]:
    """Runs something as the node's root in the sandbox's network namespace."""
    mark = secrets.token_hex(8)
    program = await sandbox.spawn("sh", "-c", f"echo begun; sleep 1000; : {mark}")
    assert (await anext(program.lines())).strip() == "begun"
    pid = _pid(mark)

    def inside(*argv: str) -> str:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", *argv], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    yield inside
    await program.kill(grace_s=0)


def _pid(mark: str) -> str:
    # Between fork and exec its child says the same.
    return str(min(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _says(each, mark)))


def _says(process: Path, mark: str) -> bool:
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return argv[0] == b"sh" and any(mark.encode() in each for each in argv)
