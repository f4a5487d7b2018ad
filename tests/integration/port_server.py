"""An HTTP server for the inside of a sandbox: says what it got, echoes chunk by chunk, speaks WebSocket.

``python3 port_server.py PORT [ADDRESS]``. Standard library only; no test module.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Answers(BaseHTTPRequestHandler):
    """GET says what came, POST echoes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The request as JSON, or a WebSocket."""
        if self.headers.get("upgrade", "").lower() == "websocket":
            self._websocket()
            return
        if self.path == "/odd":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 30\r\n\r\nabc")
            self.close_connection = True
            return
        said = json.dumps({"path": self.path, "headers": self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.send_header("content-type", "application/json")
        self.send_header("keep-alive", "timeout=5")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(said)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Each chunk of the body back as soon as it has come."""
        self.send_response(200)
        length = self.headers.get("content-length")
        if length is not None:
            self.send_header("content-length", length)
            self.end_headers()
            left = int(length)
            while left and (part := self.rfile.read(min(left, 65536))):
                left -= len(part)
                self.wfile.write(part)
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while True:
            size = int(self.rfile.readline(), 16)
            chunk = self.rfile.read(size)
            self.rfile.readline()
            self.wfile.write(b"%x\r\n%b\r\n" % (size, chunk))
            self.wfile.flush()
            if size == 0:
                return

    def _websocket(self) -> None:
        key = hashlib.sha1(self.headers["sec-websocket-key"].encode() + _WEBSOCKET).digest()
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(key).decode())
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size == 126:
                size = int.from_bytes(self.rfile.read(2), "big")
            mask, body = self.rfile.read(4), self.rfile.read(size)
            plain = bytes(byte ^ mask[place % 4] for place, byte in enumerate(body))
            long = len(plain) >= 126
            size_bytes = bytes([126]) + len(plain).to_bytes(2, "big") if long else bytes([len(plain)])
            self.wfile.write(head[:1] + size_bytes + plain)
            if head[0] & 15 == 8:
                return

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Of either family."""

    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = Server((address, int(sys.argv[1])), Answers)
    print("listening", flush=True)
    server.serve_forever()
