"""The server behind ``slow_bucket``: of S3 what ``obstore`` and the fetcher ask for, one thread a connection."""

from __future__ import annotations

import email.utils
import json
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

__all__ = ["COUNTS", "BucketServer", "Line"]

COUNTS = "/-/counts"
_PIECE = 256 << 10
_MOST_HEAD = 64 << 10
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Line:
    """When bytes come over a line of fixed latency and bandwidth that all requests share."""

    def __init__(
        self, latency_s: float, bytes_per_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0
        self._lock = threading.Lock()

    def request(self) -> None:
        """Return when the first byte of an answer could be there."""
        self._sleep(self._latency_s)

    def carry(self, count: int) -> None:
        """Return when the line has carried so many more bytes."""
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + count / self._bytes_per_s
            until = self._free_at
        if (left := until - self._clock()) > 0:
            self._sleep(left)


@dataclass
class _Counts:
    gets: int = 0
    sent_bytes: int = 0
    largest: int = 0
    smallest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, length: int) -> None:
        with self.lock:
            self.gets += 1
            self.sent_bytes += length
            self.largest = max(self.largest, length)
            self.smallest = min(self.smallest, length) if self.gets > 1 else length

    def json(self) -> bytes:
        names = ("gets", "sent_bytes", "largest", "smallest")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


@dataclass(frozen=True)
class _Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    file: tuple[int, int, int] | None = None
    """Descriptor (closed when sent), offset, length."""


class BucketServer:
    """One bucket whose objects are the files of a directory."""

    def __init__(self, directory: Path, bucket: str, line: Line, port: int) -> None:
        self._directory = directory
        self._bucket = bucket
        self._line = line
        self._counts = _Counts()
        self._writing = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=256)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Answer for ever."""
        while True:
            connection, _ = self._socket.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connected, args=(connection,), daemon=True).start()

    def _connected(self, connection: socket.socket) -> None:
        with connection:
            try:
                for asked in _requests(connection):
                    self._send(connection, asked, self._answer(asked))
            except (ConnectionError, ValueError):
                return

    def _send(self, connection: socket.socket, asked: _Asked, answer: _Answer) -> None:
        length = len(answer.body) if answer.file is None else answer.file[2]
        headers = {"Content-Length": str(length), "Date": email.utils.formatdate(usegmt=True), **answer.headers}
        head = f"HTTP/1.1 {answer.status} -\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if asked.path != COUNTS:
            self._line.request()
        whole = answer.body if asked.method != "HEAD" else b""
        start = head.encode() + b"\r\n" + whole
        if answer.file is None:
            connection.sendall(start)
        else:
            self._send_file(connection, asked, start, *answer.file)

    def _send_file(
        self, connection: socket.socket, asked: _Asked, start: bytes, fd: int, offset: int, length: int
    ) -> None:
        try:
            connection.sendall(start)
            if asked.method == "HEAD":
                return
            self._counts.add(length)
            end = offset + length
            while offset < end:
                piece = min(_PIECE, end - offset)
                self._line.carry(piece)
                while piece:
                    sent = os.sendfile(connection.fileno(), fd, offset, piece)
                    if not sent:
                        raise ConnectionError("the file has become shorter")
                    offset, piece = offset + sent, piece - sent
        finally:
            os.close(fd)

    def _answer(self, asked: _Asked) -> _Answer:
        if asked.path == COUNTS:
            return _Answer(200, self._counts.json())
        bucket, _, key = asked.path.lstrip("/").partition("/")
        if bucket != self._bucket:
            return _error(404, "NoSuchBucket")
        if not key:
            return self._on_bucket(asked)
        path = self._directory / key
        if ".." in Path(key).parts:
            return _error(400, "InvalidURI")
        if asked.method in ("GET", "HEAD"):
            return _read(path, asked.headers.get("range"))
        if asked.method == "PUT":
            return self._put(path, asked)
        if asked.method == "DELETE":
            path.unlink(missing_ok=True)
            return _Answer(204)
        return _error(405, "MethodNotAllowed")

    def _on_bucket(self, asked: _Asked) -> _Answer:
        if asked.method == "POST" and "delete" in asked.query:
            keys = [unescape(key.decode()) for key in _KEY.findall(asked.body)]
            for key in keys:
                (self._directory / key).unlink(missing_ok=True)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml(200, f"<DeleteResult>{gone}</DeleteResult>")
        if asked.method == "GET":
            return self._list(asked.query.get("prefix", [""])[0])
        return _error(405, "MethodNotAllowed")

    def _list(self, prefix: str) -> _Answer:
        found = []
        for path in sorted((self._directory / prefix).rglob("*")):
            try:
                known = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                at = datetime.fromtimestamp(known.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                key = escape(str(path.relative_to(self._directory)))
                found.append(
                    f"<Contents><Key>{key}</Key><LastModified>{at}</LastModified><Size>{known.st_size}</Size>"
                    f"<ETag>{escape(_etag(known))}</ETag></Contents>"
                )
        rows = "".join(found)
        return _xml(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")

    def _put(self, path: Path, asked: _Asked) -> _Answer:
        partial = self._directory / f".put-{secrets.token_hex(8)}"
        partial.write_bytes(asked.body)
        with self._writing:
            try:
                there: str | None = _etag(path.stat())
            except FileNotFoundError:
                there = None
            wanted = asked.headers.get("if-match")
            if (asked.headers.get("if-none-match") == "*" and there) or (wanted and wanted != there):
                partial.unlink()
                return _error(412, "PreconditionFailed")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.rename(path)
            return _Answer(200, headers={"ETag": _etag(path.stat())})


def _read(path: Path, wanted: str | None) -> _Answer:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return _error(404, "NoSuchKey")
    known = os.fstat(fd)
    if not stat.S_ISREG(known.st_mode):
        os.close(fd)
        return _error(404, "NoSuchKey")
    headers = {
        "ETag": _etag(known),
        "Last-Modified": email.utils.formatdate(known.st_mtime, usegmt=True),
        "Accept-Ranges": "bytes",
    }
    asked = _RANGE.fullmatch(wanted) if wanted else None
    if asked is None:
        return _Answer(200, headers=headers, file=(fd, 0, known.st_size))
    first = int(asked[1])
    last = min(int(asked[2]) if asked[2] else known.st_size - 1, known.st_size - 1)
    if first > last:
        os.close(fd)
        return _error(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {first}-{last}/{known.st_size}"
    return _Answer(206, headers=headers, file=(fd, first, last - first + 1))


def _etag(known: os.stat_result) -> str:
    return f'"{known.st_ino:x}-{known.st_mtime_ns:x}-{known.st_size:x}"'


def _xml(status: int, text: str) -> _Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    return _Answer(status, body, {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    return _xml(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


def _requests(connection: socket.socket) -> Iterator[_Asked]:
    """What a connection asks, one after the other; raises ValueError for what is no HTTP/1.1."""
    buffer = b""
    while True:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > _MOST_HEAD:
                raise ValueError("the head is too long")
            more = connection.recv(1 << 16)
            if not more:
                return
            buffer += more
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        body = bytearray(buffer[end + 4 :])
        while len(body) < length:
            more = connection.recv(1 << 20)
            if not more:
                return
            body += more
        buffer = bytes(body[length:])
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        yield _Asked(method, unquote(parts.path), query, headers, bytes(body[:length]))
