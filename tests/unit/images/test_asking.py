"""What is asked of a registry beside what skopeo asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dsec.images.copying import _asked_delay_s

pytestmark = pytest.mark.anyio


async def test_no_password_of_the_machine_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry hears whose delay is asked for and nothing else: not what a .netrc has for everybody."""
    (tmp_path / ".netrc").write_text("default login root password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await _asked_delay_s(f"http://127.0.0.1:{port}/v2/a/manifests/1") == 7
    assert len(heard) == 1 and b"authorization" not in heard[0].lower()
