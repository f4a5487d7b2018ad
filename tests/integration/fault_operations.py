"""What the fault walk does at each point, by the second part of the point's name; each ends only as promised.

Also a program, for a client that is to be killed: ``python fault_operations.py OPERATION SANDBOX_ID KEY``, the node
being that of ``DSEC_URL`` and ``DSEC_TOKEN``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import dsec
from dsec.testing.node import wait_until

__all__ = ["OPERATIONS"]

IMAGE = "dsec/debian:12"
DATA = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(12_000))


async def create(client: dsec.DSecClient, _: str, key: str) -> None:
    """A sandbox with a main process is made once and works."""
    sandbox = await client.sandbox(IMAGE, command=("sh", "-c", "echo begun; exec sleep 1000"), key=key)
    assert (await sandbox.exec("echo", "works", key=f"{key}-echo")).stdout == "works\n"
    running = [each.argv[2] for each in await sandbox.execs() if each.ended is None]
    assert running == ["echo begun; exec sleep 1000"]
    processes = await sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", key=f"{key}-ps")
    assert processes.stdout.count("sleep 1000") == 1
    await sandbox.stop()


async def execute(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A command runs once; its exit code and both streams are told."""
    sandbox = client.attach(sandbox_id)
    result = await sandbox.run_shell(f"echo once >> /tmp/{key}; printf out; printf err >&2; exit 3", key=key)
    assert (result.exit_code, result.stdout, result.stderr, result.ended) == (3, "out", "err", "exited")
    assert (await sandbox.read(f"/tmp/{key}")) == b"once\n"
    again = await sandbox.run_shell(f"echo once >> /tmp/{key}; printf out; printf err >&2; exit 3", key=key)
    assert (again.exit_code, again.stdout, again.stderr) == (3, "out", "err")
    assert (await sandbox.read(f"/tmp/{key}")) == b"once\n"


async def stdin(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """Every byte of input arrives once and in order, and its end."""
    sandbox = client.attach(sandbox_id)
    result = await sandbox.exec("cat", stdin=DATA, key=key)
    assert (result.exit_code, result.stdout_bytes == DATA) == (0, True)


async def write(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A file is replaced as a whole, and nothing lies beside it."""
    sandbox = client.attach(sandbox_id)
    await sandbox.write(f"/srv/{key}/file", b"before", parents=True)
    await sandbox.write(f"/srv/{key}/file", DATA, mode=0o640)
    assert await sandbox.read(f"/srv/{key}/file") == DATA
    found = await sandbox.run_shell(f"until [ $(ls -A /srv/{key} | wc -l) = 1 ]; do sleep 0.01; done", timeout_s=10)
    assert found.exit_code == 0, "a draft is left beside the file"


async def stop(client: dsec.DSecClient, _: str, key: str) -> None:
    """A stop is confirmed, and whoever waited for an exec in it is told why."""
    sandbox = await client.sandbox(IMAGE, key=key)
    program = await sandbox.spawn(shell="echo begun; exec sleep 1000", key=f"{key}-exec")
    stopped = await sandbox.stop()
    assert stopped.cause == "stopped" and stopped.proof_of_death.processes == 0
    info = await sandbox.info()
    assert (info.state, info.cause) == ("stopped", "stopped")
    try:
        await program.wait()
    except dsec.SandboxGone as error:
        assert error.details["cause"] == "stopped"
    else:
        raise AssertionError("the end of a sandbox was told as the result of its exec")


async def kill(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A kill reaches everything and is confirmed, and the exec ends as cancelled."""
    sandbox = client.attach(sandbox_id)
    program = await sandbox.spawn(shell="trap '' TERM; sleep 1001 & sleep 1001", key=key)
    await program.kill(grace_s=0.2)
    result = await program.wait()
    assert (result.ended, result.exit_code) == ("cancelled", None)
    assert result.signal in (signal.SIGKILL, signal.SIGTERM)
    left = await sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", key=f"{key}-ps")
    assert "sleep 1001" not in left.stdout


async def remove(client: dsec.DSecClient, _: str, key: str) -> None:
    """Of a removed sandbox nothing is known any more."""
    sandbox = await client.sandbox(IMAGE, key=key)
    await sandbox.exec("echo", "kept", key=f"{key}-exec")
    await sandbox.stop()
    with contextlib.suppress(dsec.NotFound):  # asked again after it was done
        await sandbox.remove()
    try:
        await sandbox.info()
    except dsec.NotFound:
        return
    raise AssertionError("a removed sandbox is still known")


async def run(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A script is run once in its session's shell, which knows what came before; its result is found again."""
    sandbox = client.attach(sandbox_id)
    session = await sandbox.open_session(key=f"{key}-session")
    await session.run("n=1", key="first")
    script = f"echo once >> /tmp/{key}; printf out$n; printf err >&2; n=2; (exit 3)"
    for _ in range(2):
        result = await session.run(script, key=key)
        assert (result.exit_code, result.stdout, result.stderr, result.ended) == (3, "out1", "err", "exited")
    assert (await sandbox.read(f"/tmp/{key}")) == b"once\n"
    assert (await session.run("echo $? $n", key="last")).stdout == "3 2\n"
    await session.close()


async def interrupt(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A run that times out ends its script and what that started, and leaves the shell as it was."""
    session = await client.attach(sandbox_id).open_session(key=f"{key}-session")
    result = await session.run("n=1; sleep 1002; sleep 1002; n=2", timeout_s=0.2, grace_s=0.5, key=key)
    assert (result.ended, result.exit_code) == ("timeout", None)
    assert (await session.run("echo $n; pgrep -f 'sleep 100[2]'", key="after")).stdout == "1\n"
    await session.close()


async def pull(client: dsec.DSecClient, _: str, key: str) -> None:
    """A layer comes from its store and is read; once it is removed the store keeps nothing for the node."""
    tag = await _published(client, key)
    await client.layers.remove(tag)
    while True:
        try:
            pulled = await client.layers.pull(tag)
        except dsec.NodeError:  # the edge died: whoever asks again goes on where it was
            continue
        break
    await _read_from(client, tag)
    await client.layers.remove(tag)
    claims = Path((await client.layers.stores())[0].url.removeprefix("file://")) / "claims" / pulled.digest
    await asyncio.to_thread(wait_until, lambda: not list(claims.glob("*")), "no claim is left", timeout_s=20)


async def evict(client: dsec.DSecClient, _: str, key: str) -> None:
    """A layer leaves the node, is known, and comes back for the next sandbox."""
    tag = await _published(client, key)
    await client.layers.evict(tag)
    assert not (await client.layers.get(tag)).here
    await _read_from(client, tag)
    assert (await client.layers.get(tag)).here
    await client.layers.remove(tag)


async def _published(client: dsec.DSecClient, key: str) -> str:
    tag = f"workspace/{key.replace('.', '-')}:1"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").write_bytes(DATA + key.encode())
        await client.layers.build(folder, tag, at="/work")
    await client.layers.push(tag)
    return tag


async def _read_from(client: dsec.DSecClient, tag: str) -> None:
    async with client.sandbox(IMAGE, workspace=tag) as sandbox:
        assert (await sandbox.read("/work/file")).startswith(DATA)


async def snapshot(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A snapshot is taken once, has all that was written before it, and its sandbox goes on."""
    sandbox = client.attach(sandbox_id)
    await sandbox.write(f"/srv/{key}", DATA)
    taken = await sandbox.snapshot(key=key)
    await sandbox.write(f"/srv/{key}", b"later")
    assert (await sandbox.snapshot(key=key)).id == taken.id
    async with client.sandbox(taken.args) as copy:
        assert await copy.read(f"/srv/{key}") == DATA
    assert (await sandbox.info()).state == "running"
    await client.snapshots.remove(taken.id)


async def unsnap(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A snapshot that was removed is gone, and nothing begins with it any more."""
    taken = await client.attach(sandbox_id).snapshot(key=key)
    await client.snapshots.remove(taken.id)
    assert (await client.snapshots.get(taken.id)).info.state == "removed"
    assert taken.id not in [each.id for each in await client.snapshots.list()]
    try:
        await client.sandbox(taken.args)
    except dsec.NotFound:
        return
    raise AssertionError("a sandbox began with a snapshot that was removed")


async def pack(client: dsec.DSecClient, sandbox_id: str, key: str) -> None:
    """A layer is packed once for a key, begins new sandboxes at once, and leaves no snapshot."""
    sandbox = client.attach(sandbox_id)
    tag = f"workspace/{key.replace('.', '-')}:1"
    await sandbox.write(f"/srv/{key}", DATA)
    packed = await sandbox.pack_diff(tag, key=key)
    await sandbox.write(f"/srv/{key}", b"later")
    assert await sandbox.pack_diff(tag, key=key) == packed
    async with client.sandbox(IMAGE, workspace=tag) as other:
        assert await other.read(f"/srv/{key}") == DATA
    await client.layers.remove(tag)
    for each in await client.snapshots.list():
        await client.snapshots.remove(each.id)


OPERATIONS: dict[str, Callable[[dsec.DSecClient, str, str], Awaitable[None]]] = {
    "create": create,
    "exec": execute,
    "stdin": stdin,
    "write": write,
    "stop": stop,
    "kill": kill,
    "remove": remove,
    "run": run,
    "interrupt": interrupt,
    "pull": pull,
    "evict": evict,
    "snapshot": snapshot,
    "unsnap": unsnap,
    "pack": pack,
}


async def main(operation: str, sandbox_id: str, key: str) -> None:
    """Carry out one operation as a process of its own."""
    async with dsec.DSecClient(os.environ["DSEC_URL"], os.environ["DSEC_TOKEN"]) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        await OPERATIONS[operation](client, sandbox_id, key)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
