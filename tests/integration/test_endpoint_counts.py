"""What endpoints did is counted to the end, and readable after it."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE
from .test_endpoints import ask
from .upstream import upstream

pytestmark = [pytest.mark.node, pytest.mark.anyio]


def facts(info: dsec.EndpointInfo) -> tuple[str, int, int, int]:
    """What is counted of one endpoint."""
    return info.name, info.requests, info.refused, info.sent_bytes


async def test_counts_outlive_the_sandbox(client: dsec.DSecClient) -> None:
    """Stopped at once after its last request, by whatever cause, a sandbox's counts are exact: none is lost."""
    async with upstream() as model:
        endpoints = {"llm": model.url, "shut": model.url}
        for ended_by in ("stop", "main", "lifetime"):
            script = "until [ -e /tmp/end ]; do sleep 0.01; done"
            box = await client.sandbox(
                IMAGE,
                endpoints=endpoints,
                command=["sh", "-c", script],
                lifetime_s=3 if ended_by == "lifetime" else 60,
            )
            await box.close_endpoint("shut")
            assert (await ask(box, "/x", name="shut"))[0] == 403
            assert (await ask(box, "/x", method="POST", body="12345"))[0] == 200
            live = {each.name: each.received_bytes for each in await box.endpoints()}
            if ended_by == "stop":
                await box.stop()
            elif ended_by == "main":
                await box.write("/tmp/end", b"")
            while (await box.info()).ended_at is None:  # noqa: ASYNC110  (the node tells nobody)
                await asyncio.sleep(0.05)
            llm, shut = await box.endpoints()
            assert facts(llm) == ("llm", 1, 0, 5) and facts(shut) == ("shut", 0, 1, 0)
            assert (llm.received_bytes, llm.connections) == (live["llm"], 0)
            assert (await client.attach(box.id).endpoints()) == [llm, shut]


async def test_a_request_under_way_is_counted(client: dsec.DSecClient) -> None:
    """Cut in the middle of an answer by the stop, what had come of it is counted."""
    async with upstream() as model:
        box = await client.sandbox(IMAGE, endpoints={"llm": model.url})
        program = 'import urllib.request as u; a = u.urlopen("http://llm.dsec.internal/stream"); print(a.readline())'
        running = await box.spawn("python3", "-uc", program + "; a.read()")
        model.more.put_nowait(b"x" * 1000)
        assert "x" * 1000 in await anext(running.lines())
        await box.stop()
        (info,) = await box.endpoints()
        assert info.requests == 1 and info.received_bytes >= 1000


@pytest.mark.parametrize("part", ["proxy", "runtime", "edge"])
async def test_no_count_is_lost_with_a_part(node: RunningNode, client: dsec.DSecClient, part: str) -> None:
    """The part is killed between the last request and the stop."""
    async with upstream() as model:
        box = await client.sandbox(IMAGE, endpoints={"llm": model.url})
        assert (await ask(box, "/x", method="POST", body="12345"))[0] == 200
        assert (await box.endpoints())[0].requests == 1
        before = node.services()[part].pid
        await asyncio.to_thread(node.kill, part)
        again = lambda: node.services()[part].pid not in (0, before)  # noqa: E731
        await asyncio.to_thread(wait_until, again, f"{part} runs again")
        await box.stop()
        assert facts((await box.endpoints())[0]) == ("llm", 1, 0, 5)
