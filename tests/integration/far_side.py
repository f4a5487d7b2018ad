"""The far side of a network, in a namespace of a test's own: a name server, and servers of HTTP and TLS on its
addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

__all__ = ["GET", "FarSide", "certificate_in", "far_side"]

GET = """
import http.client, sys
address, host, path = sys.argv[1:4]
try:
    conn = http.client.HTTPConnection(address, 80, timeout=20)
    conn.request("GET", path, headers={"Host": host})
    answer = conn.getresponse()
    print(answer.status, answer.read().decode())
except OSError as error:
    print("failed", type(error).__name__)
"""
_HEAD = struct.Struct("!6H")
_WHEEL = "tiny-1-py3-none-any.whl"


class FarSide:
    """Where it is: ``near`` is the node's address on the link, ``addresses`` are the servers', ``resolver`` the
    first, ``six`` one of IPv6.
    """

    def __init__(self, number: int) -> None:
        self.name = f"far{secrets.token_hex(3)}"
        self.range = f"10.{number}.0.0/24"
        self.near = f"10.{number}.0.1"
        self.addresses = [f"10.{number}.0.{each}" for each in (2, 3, 4)]
        self.resolver = self.addresses[0]
        self.six = f"fd00:{number:x}::2"

    def settings(self, more: str = "") -> str:
        """Of a node whose sandboxes may reach it."""
        allowed = json.dumps([*(f"{each}/32" for each in self.addresses), f"{self.six}/128"])
        return f'[network]\nresolvers = ["{self.resolver}"]\nallowed_ranges = {allowed}\n{more}'


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def certificate_in(folder: Path) -> Path:
    """A new certificate and its key in one file, for ``far_side``."""
    certificate = folder / "both.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    argv += ["-subj", "/CN=far.test", "-keyout", str(certificate), "-out", str(certificate.with_suffix(".crt"))]
    subprocess.run(argv, check=True, capture_output=True)
    certificate.write_bytes(certificate.read_bytes() + certificate.with_suffix(".crt").read_bytes())
    return certificate


@contextlib.contextmanager
def far_side(names: dict[str, list[str]], certificate: Path | None = None) -> Iterator[FarSide]:
    """A namespace behind a link. ``names``: what its name server says; ``@0`` stands for its first address, ``@6``
    for that of IPv6, ``=NAME`` leads to another name.
    """
    made = FarSide(64 + secrets.randbelow(128))
    _run("ip", "netns", "add", made.name)
    try:
        _run("ip", "link", "add", made.name, "type", "veth", "peer", "name", "far", "netns", made.name)
        _run("ip", "addr", "add", f"{made.near}/24", "dev", made.name)
        _run("ip", "addr", "add", f"{made.six[:-1]}1/64", "dev", made.name, "nodad")
        _run("ip", "link", "set", made.name, "up")
        for address in made.addresses:
            _run("ip", "-n", made.name, "addr", "add", f"{address}/24", "dev", "far")
        _run("ip", "-n", made.name, "addr", "add", f"{made.six}/64", "dev", "far", "nodad")
        _run("ip", "-n", made.name, "link", "set", "far", "up")
        _run("ip", "-n", made.name, "link", "set", "lo", "up")
        told = {name: [_address(made, each) for each in said] for name, said in names.items()}
        argv = ["ip", "netns", "exec", made.name, sys.executable, __file__, json.dumps(told), *made.addresses]
        argv += ["--six", made.six]
        if certificate is not None:
            argv += ["--certificate", str(certificate)]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield made
        finally:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
    finally:
        _run("ip", "netns", "del", made.name)


def _address(made: FarSide, text: str) -> str:
    if text == "@6":
        return made.six
    return made.addresses[int(text[1:])] if text.startswith("@") else text


class _Names(asyncio.DatagramProtocol):
    """Answers A and AAAA as it is told; of other types that there is nothing."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._names = names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        ident, *_ = _HEAD.unpack_from(data)
        labels, at = [], _HEAD.size
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        kind = int.from_bytes(data[at + 1 : at + 3], "big")
        name = ".".join(labels).lower()
        question = data[_HEAD.size : at + 5]
        records = list(self._records(name, kind))
        code = 0 if name in self._names else 3
        head = _HEAD.pack(ident, 0x8180 | code, 1, len(records), 0, 0)
        self._transport.sendto(head + question + b"".join(records), addr)

    def _records(self, name: str, kind: int) -> Iterator[bytes]:
        for said in self._names.get(name, []):
            if said.startswith("="):
                yield _record(name, 5, _wire(said[1:]))
                yield from self._records(said[1:], kind)
            elif kind == (28 if ":" in said else 1):
                family = socket.AF_INET6 if ":" in said else socket.AF_INET
                yield _record(name, kind, socket.inet_pton(family, said))


def _wire(name: str) -> bytes:
    return b"".join(bytes([len(each)]) + each.encode() for each in name.split(".")) + b"\0"


def _record(name: str, kind: int, data: bytes) -> bytes:
    return _wire(name) + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says which host was asked for at which address, for each request of a connection; ``/bytes/N`` sends N
    bytes, ``/simple/tiny/`` is an index of packages. What is to become a WebSocket is spoken to as by ``_banner``.
    """
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            host = next((line[5:].strip() for line in head.split("\r\n") if line.lower().startswith("host:")), "-")
            path = head.split(" ")[1]
            if "upgrade: websocket" in head.lower():
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
                return await _banner(reader, writer)
            body = f"{host} {writer.get_extra_info('sockname')[0]}".encode()
            if path.startswith("/bytes/"):
                body = bytes(int(path[7:]))
            if path == "/simple/tiny/":
                body = f'<a href="/{_WHEEL}">{_WHEEL}</a>'.encode()
            if path == f"/{_WHEEL}":
                body = _wheel()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _wheel() -> bytes:
    """A package of one module."""
    about = "tiny-1.dist-info"
    files = {
        "tiny.py": "answer = 42\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


async def _tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks what was agreed on inside TLS."""
    agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    try:
        await (_http2 if agreed == "h2" else _http)(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


async def _http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with its authority, as often as 40,000 bytes have room for it. Of a request's head it
    reads what ``reaching.HTTP2`` writes: three indexed fields, then the authority as it is.
    """
    headers, data, settings, goodbye = 1, 0, 4, 7
    await reader.readexactly(24)
    writer.write(_frame(settings, 0, 0))
    while True:
        head = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == settings and not flags & 1:
            writer.write(_frame(settings, 1, 0))
        if kind == headers:
            authority = body[5 : 5 + body[4]]
            answer = authority * (40_000 // len(authority))
            parts = [answer[at : at + 16_000] for at in range(0, len(answer), 16_000)]
            writer.write(_frame(headers, 4, stream, b"\x88"))
            for part in parts:
                writer.write(_frame(data, part is parts[-1], stream, part))
        if kind == goodbye:
            return writer.close()
        await writer.drain()


async def _banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks first, then echoes to the end of what it is told."""
    writer.write(b"hello\n")
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.write(b"bye\n")
    writer.close()


async def _main(names: dict[str, list[str]], addresses: list[str], six: str, certificate: str | None) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: _Names(names), local_addr=(addresses[0], 53))
    # Only the last one has something there.
    await asyncio.start_server(_http, addresses[-1], 8081)
    for address in (*addresses, six):
        await asyncio.start_server(_http, address, 80)
        await asyncio.start_server(_banner, address, 2525)
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
            tls.set_alpn_protocols(["h2", "http/1.1"])
            await asyncio.start_server(_tls, address, 443, ssl=tls)
    os.write(1, b"ready\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", type=json.loads)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--six")
    parser.add_argument("--certificate")
    given = parser.parse_args()
    asyncio.run(_main(given.names, given.addresses, given.six, given.certificate))
