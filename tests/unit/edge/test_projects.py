"""Projects and scopes at the edge: what another project has does not exist, and a small scope only looks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsec.api import ids
from dsec.edge.caller import Caller, acting
from dsec.errors import Conflict, Denied, DSecError, InvalidArgument, NotFound
from dsec.testing.edge_world import Api, World, caller_headers, failing

pytestmark = pytest.mark.anyio


async def ask(api: Api, project: str, method: str, path: str, body: Any = None) -> Any:
    """A request of a token of that project."""
    return await api.call(method, path, body, project=project, scope="exec")


def plain(error: DSecError, *names: str) -> str:
    """All that an error says, without the names that were asked for."""
    said = repr(error.to_wire())
    for name in names:
        said = said.replace(name, "X")
    return said


async def test_another_projects_sandbox_does_not_exist(world: World) -> None:
    """Every route of a sandbox answers another project as if there were none, by ID and by name, live and ended; the
    answer is the same to the letter as for one that never was."""
    async with world.edge() as (edge, api):
        made = await api.create(project="one", name="crate")
        never = ids.new_sandbox_id("test")
        sandbox_routes = [each for each in edge.routes if each.path.startswith("/v1/sandboxes/{id}")]
        assert len(sandbox_routes) > 15
        for ended in (False, True):
            for route in sandbox_routes:
                for other, known in ((never, made["id"]), ("nocrate", "crate")):
                    errors = []
                    for name in (other, known):
                        path = route.path.replace("{id}", name).replace("{exec_id}", "a" * 26)
                        path = (
                            path.replace("{transfer_id}", "a" * 26).replace("{port}", "80").replace("{name}", "llm")
                        )
                        body: dict[str, Any] = {"port": 80} if route.path.endswith("/ports") else {}
                        body = {"pty": {"rows": 1, "cols": 1}} if route.path.endswith("/resize") else body
                        body = {"key": "k"} if route.path.endswith("/snapshots") else body
                        body = {"key": "k", "reference": "workspace/w:1"} if route.path.endswith("/pack") else body
                        body = {"network": "none"} if route.path.endswith("/network") else body
                        path += "?path=/x" if route.path.endswith("/files") else ""
                        errors.append(await failing(ask(api, "two", route.method, path, body)))
                    assert isinstance(errors[1], NotFound), (route.path, errors[1])
                    assert plain(errors[0], never, "nocrate") == plain(errors[1], made["id"], "crate")
            if not ended:
                await ask(api, "one", "POST", f"/v1/sandboxes/{made['id']}/stop", {"keep": "disk", "keep_s": 60})
        answer = await failing(api.create(project="two", from_disk=made["id"]))
        assert isinstance(answer, NotFound)


async def test_another_projects_snapshot_does_not_exist(world: World) -> None:
    """It is neither listed, shown, removed nor begun from; nor does a layer tell who uses it."""
    async with world.edge() as (edge, api):
        made = await api.create(project="one")
        snapshot = await ask(api, "one", "POST", f"/v1/sandboxes/{made['id']}/snapshots", {"key": "k"})
        assert (await ask(api, "two", "GET", "/v1/snapshots"))["snapshots"] == []
        one = f"/v1/snapshots/{snapshot['id']}"
        for work in (
            ask(api, "two", "GET", one),
            ask(api, "two", "DELETE", one),
            api.create(project="two", from_snapshot=snapshot["id"]),
        ):
            assert isinstance(await failing(work), NotFound)
        layer = made["layers"][0]
        users = {made["id"], snapshot["id"]}
        for project, seen in (("one", users), ("two", set()), ("*", users)):
            with acting(Caller("x", project, "read")):
                assert set(edge.core.users_of(layer)) == seen
        assert [each["id"] for each in (await ask(api, "one", "GET", "/v1/snapshots"))["snapshots"]] == [
            snapshot["id"]
        ]


async def test_another_projects_sandbox_has_no_streams(world: World) -> None:
    """Each method of the WebSocket, and a transfer, answers that there is no such sandbox."""
    async with world.edge() as (_, api):
        made = await api.create(project="one")
        async with api.socket(project="one", scope="exec") as own:
            end, _, _ = await own.run(made["id"], b"true")
        opens: list[tuple[str, dict[str, Any]]] = [
            ("exec", {"key": "k", "argv": [b"true"], "mode": "collect"}),
            ("attach", {"exec_id": end["exec_id"]}),
            ("kill", {"exec_id": end["exec_id"], "grace_s": 0}),
            ("session.open", {"key": "k"}),
            ("session.run", {"session_id": end["exec_id"], "key": "k", "script": b"true"}),
            ("session.close", {"session_id": end["exec_id"]}),
            ("file.call", {"call": {"stat": {"path": b"/", "follow": True}}}),
            ("file.list", {"path": b"/"}),
            ("file.watch", {"path": b"/"}),
            ("logs", {}),
            ("events", {}),
        ]
        async with api.socket(project="two", scope="exec") as socket:
            for method, params in opens:
                stream = await socket.open(method, sandbox_id=made["id"], **params)
                assert isinstance(await failing(socket.result(stream)), NotFound), method
        query = f"transfer_id={'a' * 26}&direction=download&path=/"
        for project, status in (("two", 404), ("one", 101)):
            assert await upgraded(world, f"/v1/sandboxes/{made['id']}/transfer?{query}", project, "exec") == status


async def upgraded(world: World, target: str, project: str, scope: str) -> int:
    """The status of an upgrade to a transfer."""
    reader, writer = await asyncio.open_unix_connection(world.config.paths.edge_socket)
    named = "".join(f"{name}: {value}\r\n" for name, value in caller_headers("x", None, project, scope).items())
    head = f"GET {target} HTTP/1.1\r\nhost: edge\r\nconnection: Upgrade\r\nupgrade: dsec-transfer\r\n{named}\r\n"
    writer.write(head.encode())
    status = int((await reader.readuntil(b"\r\n")).split()[1])
    writer.close()
    return status


async def test_names_keys_and_jobs_are_a_projects_own(world: World) -> None:
    """One name, one create key and one job in two projects are two sandboxes, two creates and two leases."""
    async with world.edge() as (_, api):
        body = {"image": "dsec/debian:12", "key": "same", "name": "box"}
        one = await ask(api, "one", "POST", "/v1/sandboxes", body)
        two = await ask(api, "two", "POST", "/v1/sandboxes", body)
        assert one["id"] != two["id"] and (one["project"], two["project"]) == ("one", "two")
        for project, made in (("one", one), ("two", two)):
            assert (await ask(api, project, "GET", "/v1/sandboxes/box"))["id"] == made["id"]
            found = (await ask(api, project, "GET", "/v1/sandboxes"))["sandboxes"]
            assert [each["id"] for each in found] == [made["id"]]
        assert isinstance(await failing(api.create(project="one", name="box")), Conflict)
        assert len((await api.call("GET", "/v1/sandboxes"))["sandboxes"]) == 2
        leases = set()
        for project in ("one", "two", "default"):
            await ask(api, project, "POST", "/v1/jobs", {"name": "train", "holder": f"holder-{project}"})
            leases.add(world.runtime.called("job.lease")[-1]["job"])
            listed = (await ask(api, project, "GET", "/v1/jobs"))["jobs"]
            assert [(each["name"], each["project"]) for each in listed] == [("train", project)]
        assert len(leases) == 3 and "train" in leases
        assert (await ask(api, "two", "DELETE", "/v1/creates/same"))["sandbox_id"] == two["id"]
        assert (await ask(api, "one", "GET", "/v1/sandboxes/box"))["state"] == "running"


async def test_no_job_is_named_as_another_projects_lease(world: World) -> None:
    """The runtime knows leases and no projects: a name of the form of another project's lease is refused."""
    async with world.edge() as (_, api):
        await ask(api, "one", "POST", "/v1/jobs", {"name": "train", "holder": "h"})
        lease = world.runtime.called("job.lease")[-1]["job"]
        taken = {"name": lease, "holder": "thief"}
        assert isinstance(await failing(ask(api, "default", "POST", "/v1/jobs", taken)), InvalidArgument)
        assert isinstance(await failing(ask(api, "two", "GET", "/v1/jobs/train")), NotFound)
        assert isinstance(await failing(ask(api, "two", "POST", "/v1/jobs/train/stop", {})), NotFound)


async def test_stop_all_and_usage_keep_to_the_project(world: World) -> None:
    """One principal with tokens of two projects: a filter that fits both ends, and counts, one project's."""
    async with world.edge() as (_, api):
        one = await api.create(project="one", labels={"run": "1"})
        two = await api.create(project="two", labels={"run": "1"})
        usage = await ask(api, "one", "GET", "/v1/usage?by=label:run")
        assert [group["sandboxes"] for group in usage["groups"]] == [1]
        assert (await ask(api, "one", "GET", "/v1/status"))["sandboxes"]["running"] == 1
        assert (await ask(api, "one", "POST", "/v1/stop", {"labels": {"run": "1"}}))["stopped"] == [one["id"]]
        assert (await ask(api, "two", "GET", f"/v1/sandboxes/{two['id']}"))["state"] == "running"
        assert (await ask(api, "two", "GET", "/v1/status"))["sandboxes"] == {"running": 1, "ended": 0}


async def test_a_reader_opens_nothing_that_acts(world: World) -> None:
    """Scope read: logs, events, listings and stat are open; whatever acts, attaching included, is Denied."""
    async with world.edge() as (_, api):
        made = await api.create(project="one")
        async with api.socket(project="one", scope="read") as socket:
            for method, params in (
                ("exec", {"key": "k", "argv": [b"true"]}),
                ("attach", {"exec_id": "a" * 26}),
                ("kill", {"exec_id": "a" * 26}),
                ("session.open", {"key": "k"}),
                ("session.run", {}),
                ("file.call", {"call": {"remove": {"path": b"/x"}}}),
                ("file.call", {"call": {"stat": {"path": b"/"}, "remove": {"path": b"/x"}}}),
                ("file.call", {"call": "stat"}),
                ("anything.new", {}),
            ):
                stream = await socket.open(method, sandbox_id=made["id"], **params)
                assert isinstance(await failing(socket.result(stream)), Denied), method
            stream = await socket.open("logs", sandbox_id=made["id"])
            await socket.result(stream)
        assert world.runtime.called("exec.start") == []
        target = f"/v1/sandboxes/{made['id']}/transfer?transfer_id={'a' * 26}&path=/x&direction="
        assert await upgraded(world, target + "upload", "one", "read") == 403
        assert await upgraded(world, target + "upload", "one", "exec") == 101


async def test_nothing_is_done_for_nobody(world: World) -> None:
    """A request, a WebSocket and a transfer that do not say who asks are refused, each of the three names missing."""
    async with world.edge() as (_, api):
        made = await api.create()
        for missing in caller_headers():
            headers = caller_headers() | {missing: ""}
            async with api.session.get(f"http://edge/v1/sandboxes/{made['id']}", headers=headers) as answer:
                assert answer.status == 403
        assert await upgraded(world, f"/v1/sandboxes/{made['id']}/transfer?direction=download", "", "exec") == 403


async def test_an_admin_finds_by_name_in_its_own_project_first(world: World) -> None:
    """With a token of all projects a name is the default project's, else another's; one without owner is NotFound."""
    async with world.edge() as (_, api):
        there = await api.create(project="one", name="box")
        assert (await api.call("GET", "/v1/sandboxes/box"))["id"] == there["id"]
        here = await api.create(name="box")
        assert (await api.call("GET", "/v1/sandboxes/box"))["id"] == here["id"]
        assert isinstance(await failing(api.call("GET", "/v1/sandboxes/other")), NotFound)
