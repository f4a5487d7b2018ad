"""What the fault walk does on the rarer roads: terminals, sessions, jobs, kept disks, pauses, transfers, ports."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import dsec
from dsec.api.jobs import JobInfo
from dsec.client.results import Exited, Stdout

from .upstream import upstream

__all__ = ["ROADS", "asked", "read_port", "served"]

IMAGE = "dsec/debian:12"
SERVER = (Path(__file__).parent / "port_server.py").read_bytes()
DIAL = """
import socket
try:
    with socket.create_connection(("1.1.1.1", 80), 30) as conn:
        print(conn.recv(1))
except ConnectionError:
    print("refused")
"""
ASK = "import urllib.request as u; print(u.urlopen('http://llm.dsec.internal/x', timeout=20).status)"


async def pty(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A program at a terminal begins once, hears what is typed, and its last byte and its code arrive."""
    sandbox = client.attach(sandbox_id)
    script = f"echo once >> /tmp/{key}; stty size; read line; echo got $line; exit 4"
    for _ in range(2):  # the second one finds the first one's
        program = await sandbox.spawn(shell=script, pty=dsec.Pty(rows=30, cols=90), stdin="pipe", key=key)
        if await program.poll() is None:
            await program.stdin.write(b"word\n")
        output, code = bytearray(), None
        async for event in program.events():
            output += event.data if isinstance(event, Stdout) else b""
            code = event.exit_code if isinstance(event, Exited) else code
        # Where echo comes depends on how far the program was when the word was typed.
        assert bytes(output).replace(b"word\r\n", b"", 1) == b"30 90\r\ngot word\r\n" and code == 4
    assert (await sandbox.read(f"/tmp/{key}")) == b"once\n"


async def session(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A session is opened once, and closing it leaves nothing that was started in it."""
    sandbox = client.attach(sandbox_id)
    opened = await sandbox.open_session(key=key)
    assert (await opened.run("sleep 1003 & n=1; echo $$", key="a")).ok
    again = await sandbox.open_session(key=key)
    assert (again.id, (await again.run("echo $n", key="b")).stdout) == (opened.id, "1\n")
    await opened.close()
    left = await sandbox.run_shell("pgrep -f 'sleep 100[3]'", key=f"{key}-ps")
    assert (left.exit_code, left.stdout) == (1, "")
    with _raises(dsec.Conflict):
        await again.run("true", key="c")


async def lease(client: dsec.DSecClient, _: str, key: str) -> None:
    """A job has one holder: what the former one asks is refused, its sandbox goes on with the next one."""
    name = _name(key)
    old = await client.job(name, lease_s=60).open()
    sandbox = await old.sandbox(IMAGE, key=f"{key}-sandbox")
    async with client.job(name, lease_s=60) as new:
        with _raises(dsec.Fenced):
            await sandbox.exec("true")
        with _raises(dsec.Fenced):
            await old.stop()
        assert (await new.attach(sandbox.id).exec("echo", "x")).stdout == "x\n"
        assert (await new.info()).state == "held"
    assert (await client.attach(sandbox.id).info()).cause == "stopped"


async def renew(client: dsec.DSecClient, _: str, key: str) -> None:
    """Signs of life are counted, whoever dies over them, and the job stays held."""
    async with client.job(_name(key), lease_s=6) as job, job.sandbox(IMAGE) as sandbox:
        begun = (await job.info()).expires_at
        async with asyncio.timeout(30):
            while (await job.info()).expires_at == begun:  # noqa: ASYNC110  (no event tells of it)
                await asyncio.sleep(0.05)
        assert (await sandbox.exec("true")).ok
        assert (await job.info()).state == "held"


async def expire(client: dsec.DSecClient, _: str, key: str) -> None:
    """Without a sign of life a job is lost, once, and its sandboxes end of that."""
    name = _name(key)
    job = await client.job(name, lease_s=1).open()
    sandbox = client.attach((await job.sandbox(IMAGE)).id)
    await job.detach()
    async with asyncio.timeout(30):
        while (await sandbox.info()).state != "stopped":  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.02)
        while (found := await _job(client, name)).state != "lost":  # noqa: ASYNC110  (nor of this)
            await asyncio.sleep(0.02)
    assert ((await sandbox.info()).cause, found.live) == ("lease", 0)


async def _job(client: dsec.DSecClient, name: str) -> JobInfo:
    (found,) = [each for each in await client.jobs() if each.name == name]
    return found


async def release(client: dsec.DSecClient, _: str, key: str) -> None:
    """The end of a job stops its sandboxes, and its holder may do nothing more."""
    name = _name(key)
    job = await client.job(name, lease_s=60).open()
    sandbox = await job.sandbox(IMAGE)
    assert (await client.stop_job(name)).failed == []
    with _raises(dsec.Fenced):
        await sandbox.exec("true")
    assert (await client.attach(sandbox.id).info()).cause == "stopped"
    await job.detach()


async def keep(client: dsec.DSecClient, _: str, key: str) -> None:
    """What a sandbox wrote is kept with its end, a new one begins with it, and once removed it is gone."""
    sandbox = await client.sandbox(IMAGE, key=key)
    await sandbox.run_shell("echo kept > /root/note; rm -r /usr/share/doc; sync", check=True)
    stopped = await sandbox.stop(keep="disk", keep_s=600)
    assert (stopped.cause, stopped.kept_until is not None) == ("stopped", True)
    assert (await sandbox.stop(keep="disk", keep_s=600)).kept_until == stopped.kept_until
    async with client.sandbox(IMAGE, from_disk=sandbox.id, key=f"{key}-next") as following:
        looked = await following.run_shell("cat /root/note; ls -d /usr/share/doc", key=f"{key}-look")
        assert looked.stdout == "kept\n"
    with contextlib.suppress(dsec.NotFound):  # asked again after it was done
        await sandbox.remove()
    with _raises(dsec.NotFound):
        await client.sandbox(IMAGE, from_disk=sandbox.id)


async def pause(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A sandbox stands still until it is resumed; its programs lose nothing by it."""
    sandbox = client.attach(sandbox_id)
    script = "i=0; until [ -e /tmp/go-on ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 5"
    program = await sandbox.spawn(shell=script, key=key)
    events = program.events()
    while not isinstance(await anext(events), Stdout):
        pass
    assert not (await sandbox.pause()).partial
    assert (await sandbox.info()).state == "paused"
    await sandbox.resume()
    assert (await sandbox.info()).state == "running"
    await sandbox.write("/tmp/go-on", b"")
    result = await program.wait()
    count = result.stdout.count("\n")
    assert (result.exit_code, result.stdout) == (5, "".join(f"{i}\n" for i in range(count)))
    states = [entry.state for entry in await sandbox.story()]
    assert states == ["creating", "running", "paused", "running"]


async def transfer(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A tree goes in and comes out again, each file whole and as it was, and nothing else is anywhere."""
    sandbox = client.attach(sandbox_id)
    with tempfile.TemporaryDirectory() as here:
        source, back = Path(here, "source"), Path(here, "back")
        _make_tree(source)
        await sandbox.files.upload(source, f"/srv/{key}")
        sums = await sandbox.run_shell(f"cd /srv/{key}; ls -A; sha256sum a b c; readlink link", key=f"{key}-sums")
        assert sums.stdout == f"a\nb\nc\nlink\n{_sums(source)}a\n"
        await sandbox.files.download(f"/srv/{key}", back)
        assert _names(back) == ["a", "b", "c", "link"] and _names(Path(here)) == ["back", "source"]
        assert _sums(back) == _sums(source) and (back / "link").readlink() == Path("a")


def _make_tree(directory: Path) -> None:
    directory.mkdir()
    for name, size in (("a", 9 << 20), ("b", 1), ("c", 3 << 20)):
        (directory / name).write_bytes(os.urandom(size))
    (directory / "link").symlink_to("a")


def _names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def _sums(directory: Path) -> str:
    return "".join(
        f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in ("a", "b", "c")
    )


async def expose(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A port is exposed with one token, leads to what listens there, and is taken back."""
    sandbox = client.attach(sandbox_id)
    async with served(sandbox) as port:
        url = await sandbox.expose(port)
        assert (await sandbox.expose(port)).token == url.token
        assert await read_port(url) == 200
        await sandbox.unexpose(port)
        assert await sandbox.ports() == []
        assert await read_port(url) == 404


async def network(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A sandbox gets its first network, and another one in its place; what that refuses is noted once."""
    sandbox = client.attach(sandbox_id)
    await sandbox.set_network("open")
    policy = dsec.Network(max_connections=7)
    assert (await sandbox.set_network(policy)).network == policy
    done = await sandbox.exec("python3", "-c", DIAL, key=key)
    assert done.stdout == "refused\n", done
    assert [each.reason for each in (await sandbox.events()).events] == ["policy"]


async def endpoint(client: dsec.DSecClient, _: str, key: str) -> None:
    """A sandbox reaches its endpoint from its first moment to its end."""
    async with upstream() as model, client.sandbox(IMAGE, endpoints={"llm": model.url}, key=key) as sandbox:
        assert await asked(sandbox, f"{key}-1")
        assert [each.requests for each in await sandbox.endpoints()] == [1]


@contextlib.asynccontextmanager
async def served(sandbox: dsec.Sandbox) -> AsyncIterator[int]:
    """A server inside, and its port."""
    await sandbox.write("/srv/port_server.py", SERVER, parents=True)
    server = await sandbox.spawn("python3", "/srv/port_server.py", "8000")
    assert await anext(server.lines()) == "listening"
    try:
        yield 8000
    finally:
        await server.kill(grace_s=0)


async def read_port(url: dsec.Url) -> int:
    """Status of an answer of the port; asked again where the connection drops, as it does when the proxy dies."""
    async with asyncio.timeout(30):
        while (status := await asyncio.to_thread(_get, url)) in (0, 502):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return status


def _get(url: dsec.Url) -> int:
    connection = http.client.HTTPConnection(url.connect, timeout=20)
    try:
        connection.request("GET", "/", headers=url.headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


async def asked(sandbox: dsec.Sandbox, key: str) -> bool:
    """Whether a request from inside was answered; whether its connection dropped, otherwise."""
    done = await sandbox.exec("python3", "-c", ASK, key=key)
    return done.stdout == "200\n"


class _raises:
    """The block ends with this error (pytest is not where a client is a process of its own)."""

    def __init__(self, kind: type[dsec.DSecError]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        assert kind is not None, f"no {self._kind.__name__} was raised"
        return issubclass(kind, self._kind)


def _name(key: str) -> str:
    return f"job-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


ROADS: dict[str, Callable[[dsec.DSecClient, str, str], Awaitable[None]]] = {
    "close": session,
    "endpoint": endpoint,
    "expire": expire,
    "expose": expose,
    "network": network,
    "keep": keep,
    "lease": lease,
    "open": session,
    "pause": pause,
    "port": expose,
    "pty": pty,
    "release": release,
    "renew": renew,
    "resume": pause,
    "transfer": transfer,
    "upload": transfer,
    "download": transfer,
    "unkeep": keep,
}
