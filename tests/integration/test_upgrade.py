"""A runtime that is replaced under load loses nothing; after a reboot only the memory of what was is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dsec
from dsec.node.up import UpOptions, up
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]

IMAGE = "dsec/debian:12"
EXECS, SANDBOXES = 200, 4
SCRIPT = "echo begin; until [ -e /tmp/over ]; do echo tick; sleep 0.5; done; echo end >&2; exit {code}"


async def test_an_upgrade_under_200_execs(store: Path) -> None:
    """``dsec restart runtime`` while 200 execs run: each ends with its own code and every byte, and ran once."""
    with private_node(store) as node:
        async with node.client() as client:
            sandboxes = [await client.sandbox(IMAGE) for _ in range(SANDBOXES)]
            running = await asyncio.gather(
                *(sandboxes[index % SANDBOXES].spawn(shell=SCRIPT.format(code=index % 100)) for index in range(EXECS))
            )
            await asyncio.to_thread(node.restart, "runtime")
            assert len([each for one in sandboxes for each in await one.execs() if each.ended is None]) == EXECS
            await asyncio.gather(*(one.write("/tmp/over", b"") for one in sandboxes))
            results = await asyncio.gather(*(each.wait() for each in running))
            for index, result in enumerate(results):
                assert (result.exit_code, result.ended, result.stderr) == (index % 100, "exited", "end\n")
                ticks = result.stdout.count("tick\n")
                assert result.stdout == "begin\n" + "tick\n" * ticks
            assert len({each.id for one in sandboxes for each in await one.execs()}) == EXECS
            await asyncio.gather(*(one.stop() for one in sandboxes))
        wait_until(lambda: node.leftovers() == [], "nothing is left")


async def test_a_reboot(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another boot ID records end as lost(reboot), the pool is made afresh, and no output stays."""
    with private_node(store) as node:
        async with node.client() as client:
            old = await client.sandbox(IMAGE, labels={"run": "7"})
            await old.run_shell("echo kept; head -c 1000000 /dev/zero > /var/tmp/file")
            past = await client.sandbox(IMAGE)
            await past.exec("echo", "kept")
            await past.stop()
        assert sorted(each.name for each in node.paths.output.iterdir()) == sorted([old.id, past.id])
        node.kill("keeper")
        node.paths.pool_image.with_suffix(".boot").write_text("another boot")
        monkeypatch.setattr("dsec.node.up.boot_id", lambda: "the boot after")
        report = await asyncio.to_thread(up, UpOptions(paths=node.paths))
        again = RunningNode(paths=node.paths, url=report.url, token=node.token)
        async with again.client() as client:
            for sandbox, cause in ((old, "reboot"), (past, "stopped")):
                with pytest.raises(dsec.NotFound) as caught:
                    await client.attach(sandbox.id).info()
                assert caught.value.details["cause"] == cause
            assert again.subvolumes() == []
            wait_until(lambda: list(again.paths.output.iterdir()) == [], "the output of before is gone")
            async with client.sandbox(IMAGE) as sandbox:
                assert (await sandbox.run_shell("ls /var/tmp")).stdout == ""
