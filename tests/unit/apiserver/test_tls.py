"""TLS of the API: every kind of connection through it, whom a client believes, and that nothing goes out in plain."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec.sync
from dsec.api.trust import fingerprint_of, server_context
from dsec.client.client import DSecClient
from dsec.client.discovery import find_address
from dsec.errors import Denied, InvalidArgument, NodeError
from dsec.node.certificate import ensure_certificate, fingerprint
from dsec.node.config import NodeConfig, TlsSettings
from dsec.node.up import UpOptions, _settled
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> NodeConfig:
    """A node whose certificate was made."""
    made = NodeConfig(node="tls", root=str(tmp_path_factory.mktemp("tls")), tls=TlsSettings(generate=True))
    made.paths.data.mkdir(parents=True)
    ensure_certificate(made)
    return made


@pytest.fixture
def secure(tmp_path: Path, config: NodeConfig) -> Iterator[FakeNode]:
    """A node that speaks TLS."""
    with FakeNode(tmp_path, tls=server_context(*config.tls_files)) as node:
        yield node


def shown(config: NodeConfig) -> str:
    """The fingerprint of the node's certificate."""
    found = fingerprint(config)
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["fingerprint", "file"])
async def test_everything_goes_through_tls(secure: FakeNode, config: NodeConfig, how: str) -> None:
    """HTTP, WebSocket, files, megabytes of output: as without, and whom to trust is a fingerprint or a file."""
    trust = shown(config) if how == "fingerprint" else config.tls_files[0]
    async with DSecClient(secure.url, secure.token, trust=trust) as client:
        sandbox = await client.sandbox("image")
        assert (await sandbox.exec("echo", "x")).stdout == "x\n"
        content = os.urandom(3 << 20)
        await sandbox.files.write("/data", content)
        assert await sandbox.files.read("/data") == content
        made = await sandbox.spawn("spew", str(8 << 20))
        size = 0
        async for event in made.events():
            size += len(getattr(event, "data", b""))
        assert size == 8 << 20


def test_so_does_plain_python(secure: FakeNode, config: NodeConfig) -> None:
    """The blocking client takes the same word for it."""
    with dsec.sync.DSecClient(secure.url, secure.token, trust=shown(config)) as client:
        assert client.status().node == "fake"


@pytest.mark.parametrize(
    "trust", [None, "sha256:" + "0" * 64], ids=["the system's authorities", "another certificate"]
)
async def test_a_server_that_is_not_trusted_is_told_nothing(
    secure: FakeNode, trust: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denied, phase tls, by HTTP and by WebSocket, before the token was sent: the edge and the gate hear nothing."""
    monkeypatch.delenv("DSEC_TRUST", raising=False)
    async with DSecClient(secure.url, secure.token, trust=trust) as client:
        with pytest.raises(Denied) as refused:
            await client.status()
        assert refused.value.phase == "tls"
        with pytest.raises(Denied) as refused:
            await client.open()
        assert refused.value.phase == "tls"
    assert secure.edge.requests == []


async def test_plain_text_is_not_answered(secure: FakeNode, config: NodeConfig) -> None:
    """A client that speaks no TLS gets no answer, and TLS is 1.2 or newer."""
    host, _, port = secure.url.removeprefix("https://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP/" not in await asyncio.wait_for(reader.read(), 30)
    writer.close()
    assert server_context(*config.tls_files).minimum_version >= ssl.TLSVersion.TLSv1_2
    async with DSecClient(secure.url.replace("https", "http"), secure.token) as client:
        with pytest.raises(NodeError):
            await client.tokens.create("x")


def test_a_certificate_is_kept(config: NodeConfig) -> None:
    """Asked for again it is the same; its key is root's alone; half of the pair, or a damaged one, is made anew."""
    before = shown(config)
    ensure_certificate(config)
    assert shown(config) == before
    certificate, key = map(Path, config.tls_files)
    assert key.stat().st_mode & 0o777 == 0o600
    copy = NodeConfig(node="other", root=config.root, tls=TlsSettings(generate=True))
    copy.paths.data.mkdir(parents=True)
    ensure_certificate(copy)
    first = shown(copy)
    Path(copy.tls_files[1]).unlink()
    ensure_certificate(copy)
    second = shown(copy)
    Path(copy.tls_files[0]).write_text("damaged")
    ensure_certificate(copy)
    assert len({before, first, second, shown(copy)}) == 4
    server_context(*copy.tls_files)
    assert fingerprint_of(certificate.read_bytes()) == before


@pytest.mark.parametrize("trust", ["sha256:12", "sha256:" + "g" * 64, "/nowhere/at/all.pem"])
def test_what_nobody_can_trust(trust: str) -> None:
    """A fingerprint that is none and a file that is not there are refused, not passed over."""
    with pytest.raises(InvalidArgument):
        find_address("https://node:1", "t", {"DSEC_TRUST": trust}).context()


def test_files_that_are_no_certificate(config: NodeConfig, tmp_path: Path) -> None:
    """Another's key, rubbish and nothing at all are refused by name."""
    certificate, key = config.tls_files
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("x")
    for pair in ((certificate, str(rubbish)), (str(rubbish), key), (certificate, str(tmp_path / "none.pem"))):
        with pytest.raises(InvalidArgument):
            server_context(*pair)


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ('host = "127.0.0.1"', True), ('host = "::1"', True), ('host = "0.0.0.0"', False), ('host = "10.0.0.1"',
        False),
        ('host = "::"', False), ('host = "0.0.0.0"\nplaintext = true', True),
        ('host = "0.0.0.0"\ntls.generate = true', True),
        ('host = "0.0.0.0"\n[tls]\ncertificate = "/c"\nkey = "/k"', True), ('[tls]\ncertificate = "/c"', False),
        ('[tls]\ngenerate = true\ncertificate = "/c"\nkey = "/k"', False),
    ],
)  # fmt: skip
def test_no_plain_text_beyond_the_machine_by_mistake(tmp_path: Path, settings: str, fits: bool) -> None:
    """An address that others reach needs TLS, or the word `plaintext`; half of a pair is no TLS."""
    options = UpOptions(paths=NodeConfig(node="t", root=str(tmp_path)).paths)
    options.paths.settings.parent.mkdir(parents=True)
    options.paths.settings.write_text(settings)
    if fits:
        _settled(options)
    else:
        with pytest.raises(InvalidArgument):
            _settled(options)
