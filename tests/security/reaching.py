"""What the attacks on networks run inside, and how they are told what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import dsec

__all__ = [
    "GOOD",
    "HELLO",
    "HOLD",
    "HTTP2",
    "RAW",
    "REFUSED",
    "WEBSOCKET",
    "held",
    "policy",
    "reasons",
    "refusals",
    "run",
]

HOLD = """
import socket, sys, time
family, kind, address = {"4": (2, 1, "127.0.0.1"), "6": (10, 1, "::"), "u": (2, 2, "0.0.0.0")}[sys.argv[1]]
held = socket.socket(family, kind)
held.bind((address, 61953))
print("holds", flush=True)
time.sleep(1000)
"""


RAW = """
import socket, sys
address, port, *said = sys.argv[1:]
try:
    with socket.create_connection((address, int(port)), 40) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in said:
            conn.sendall(part.encode().decode("unicode_escape").encode("latin-1"))
        print(conn.recv(1000))
except OSError as error:
    print("failed", type(error).__name__)
"""
REFUSED = ("failed ConnectionResetError", "b''")
HELLO = """
import socket, ssl, struct, sys
address, name, how = sys.argv[1:4]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
try:
    context.wrap_bio(read, written, server_hostname=name).do_handshake()
except ssl.SSLWantReadError:
    pass
message = written.read()[5:]
if how == "encrypted":  # as browsers say it, be it true or pretended
    at = 38 + 1 + message[38]
    at += 2 + int.from_bytes(message[at:at + 2], "big")
    at += 1 + message[at]
    more = struct.pack("!HH", 0xFE0D, 40) + bytes(40)
    extensions = message[at + 2:] + more
    body = message[4:at] + struct.pack("!H", len(extensions)) + extensions
    message = b"\\1" + len(body).to_bytes(3, "big") + body
size = 7 if how == "records" else len(message)
parts = [message[at:at + size] for at in range(0, len(message), size)]
records = b"".join(b"\\x16\\3\\1" + struct.pack("!H", len(each)) + each for each in parts)
try:
    with socket.create_connection((address, 443), 40) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in (records if how == "bytes" else [records]):
            conn.sendall(bytes([byte]) if how == "bytes" else byte)
        print(conn.recv(1))
except OSError as error:
    print("failed", type(error).__name__)
"""
HTTP2 = """
import socket, ssl, sys
address, name, *authorities = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
def frame(kind, flags, stream, body=b""):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
with socket.create_connection((address, 443), 40) as conn:
    with context.wrap_socket(conn, server_hostname=name) as tls:
        said = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0)
        for number, each in enumerate(authorities):
            said += frame(1, 5, 2 * number + 1, b"\\x82\\x87\\x84\\x41" + bytes([len(each)]) + each.encode())
        tls.sendall(said)
        read = tls.makefile("rb")
        bodies, left = {}, len(authorities)
        while left:
            head = read.read(9)
            body = read.read(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == 1:
                assert body == b"\\x88", body
            if kind == 0:
                bodies[stream] = bodies.get(stream, b"") + body
                left -= flags & 1
        tls.sendall(frame(7, 0, 0, bytes(8)))
        print(tls.selected_alpn_protocol())
        for number, each in enumerate(authorities):
            print(bodies[2 * number + 1].decode() == each * (40_000 // len(each)))
"""
HOLDING = """
import socket, sys
address, port, said = sys.argv[1:4]
conn = socket.create_connection((address, int(port)), 40)
if said:
    conn.sendall(said.encode().decode("unicode_escape").encode("latin-1"))
got = b""
while b"hello" not in got:
    got += conn.recv(1000)
print("open", flush=True)
for line in sys.stdin:
    try:
        conn.sendall(b"ping")
        print("answered" if conn.recv(100) else "cut", flush=True)
    except OSError:
        print("cut", flush=True)
"""
WEBSOCKET = "GET / HTTP/1.1\\r\\nHost: {}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n"


async def run(sandbox: dsec.Sandbox, script: str, *arguments: str) -> str:
    """What a script prints inside."""
    done = await sandbox.exec("python3", "-c", script, *arguments, check=True)
    return done.stdout.strip()


def policy(*rules: tuple[str, str | None, str | None, tuple[int, ...]], **more: Any) -> dsec.Network:
    """Rules as (action, domain, addresses, ports)."""
    made = [dsec.NetworkRule(action=a, domain=d, addresses=r, ports=p) for a, d, r, p in rules]  # type: ignore[arg-type]
    return dsec.Network(rules=tuple(made), **more)


GOOD = ("allow", "*.good.test", None, ())


async def reasons(sandbox: dsec.Sandbox) -> list[str]:
    """Why what was refused was, in its order."""
    return [each.reason for each in (await sandbox.events()).events]


async def refusals(sandbox: dsec.Sandbox) -> list[str]:
    """The same of connections alone: of a name both families are asked for, and again."""
    return [each.reason for each in (await sandbox.events()).events if each.kind == "connection"]


@contextlib.asynccontextmanager
async def held(
    sandbox: dsec.Sandbox, address: str, port: int, said: str = ""
) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A connection inside that is open; call for whether it still is (``answered``, ``cut``)."""
    program = await sandbox.spawn("python3", "-c", HOLDING, address, str(port), said, stdin="pipe")
    lines = program.lines()
    assert (await anext(lines)).strip() == "open"

    async def ask() -> str:
        await program.stdin.write(b"go\n")
        return (await anext(lines)).strip()

    yield ask
    await program.kill(grace_s=0)
