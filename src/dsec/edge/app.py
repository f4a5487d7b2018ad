"""The edge as one object: its parts, its background work, its ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from dsec.backends.container import ContainerBackend
from dsec.backends.contract import DiskRemoved, JobLost, SnapshotRemoved
from dsec.backends.link import RuntimeLink
from dsec.backends.wire import SandboxEnd
from dsec.edge.caller import acting, caller_of
from dsec.edge.capacity import Machine, this_machine
from dsec.edge.core import Core
from dsec.edge.creates import Creates
from dsec.edge.ends import Ends
from dsec.edge.execs import Execs
from dsec.edge.file_routes import file_routes
from dsec.edge.image_routes import image_routes
from dsec.edge.job_record import Claim, JobRecord, claim_of
from dsec.edge.job_routes import guarded, job_routes
from dsec.edge.jobs import Jobs
from dsec.edge.keeper_tools import KeeperTools
from dsec.edge.kept import KeptDisks
from dsec.edge.layer_cache import LayerCache
from dsec.edge.layer_routes import layer_routes
from dsec.edge.node_routes import node_routes
from dsec.edge.node_stores import NodeStores
from dsec.edge.packs import Packs
from dsec.edge.pausing import Pausing
from dsec.edge.peers import TrustedPeers
from dsec.edge.port_routes import port_routes
from dsec.edge.ports import Ports
from dsec.edge.recovery import Recovery
from dsec.edge.relay import Relay
from dsec.edge.router import application
from dsec.edge.sandbox_routes import sandbox_routes
from dsec.edge.snapshot_routes import snapshot_routes
from dsec.edge.snapshots import Snapshots
from dsec.edge.transfers import Transfer, peers_of
from dsec.edge.usage_routes import usage_routes
from dsec.edge.web import answered, error_answer
from dsec.errors import Conflict, Denied, DSecError, NodeError, NotFound, ProtocolError, Unsupported
from dsec.images import Images, Tools
from dsec.node.config import NodeConfig

__all__ = ["Edge"]

_log = structlog.get_logger("dsec.edge")

_MEASURE_S = 1.0
_REAP_S = 30.0
_PAST_S = 1.0
_TELL_AGAIN_S = 30.0
_KEEP_LAYERS_S = 2.0
_LISTEN_AGAIN_S = 0.05
_REAP_AT_ONCE = 500

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Edge:
    """One node's edge. ``running`` is its life; ``app`` serves while it runs.

    ``images`` is made by the caller, with ``uses_layer`` as its ``in_use`` and the tools of the node's keeper.
    """

    def __init__(
        self,
        config: NodeConfig,
        images: Callable[[Callable[[str], bool], Tools], Images],
        *,
        clock: Callable[[], float] = time.time,
        machine: Machine | None = None,
    ) -> None:
        self._link = RuntimeLink(config.paths.runtime_socket, self._on_up)
        backend = ContainerBackend(self._link)
        self._core: Core | None = None
        self._tools = KeeperTools(self._link, config.paths.data / "tools")
        self._joined: set[str] = set()
        made = images(lambda digest: self.core.uses_layer(digest), self._tools)
        machine = machine or this_machine(config.paths.data)
        self._core = Core(config, backend, self._link, made, clock, machine)
        self.pausing = Pausing(self.core)
        self.kept = KeptDisks(self.core)
        self.snapshots = Snapshots(self.core)
        self.ends = Ends(self.core, self.pausing, self.kept)
        self.stores = NodeStores(config, self.core.images, clock=clock)
        self.layer_cache = LayerCache(self.core, self.stores)
        self.creates = Creates(self.core, self.ends, self.kept, self.snapshots, self.layer_cache, self._spawn)
        self.packs = Packs(self.core, self.snapshots, self.layer_cache)
        self.execs = Execs(self.core)
        self.jobs = Jobs(self.core, self.creates, self.ends, self._cut)
        self.ends.on_other = self._other
        self._recovery = Recovery(self.core, self.creates, self.ends, self.pausing)
        self.ports = Ports(self.core)
        self._tasks: asyncio.TaskGroup | None = None
        self._watch: asyncio.Task[None] | None = None
        self.relays: dict[Relay, Claim | None] = {}
        """WebSockets that are open, and in the name of which job's holder."""
        self.transfers: dict[Transfer, Claim | None] = {}
        """Transfers' connections, likewise."""
        self.recovered = False
        """Whether records and runtime agreed once since the start."""
        self.app = self._application()

    @property
    def core(self) -> Core:
        """The shared state."""
        assert self._core is not None
        return self._core

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(_awaited(work))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Adopt what the records say, work in the background; at the end leave everything as it is."""
        self._adopt()
        self._joined = self.core.images.resume()
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as self._tasks:
                background = [
                    self._tasks.create_task(each)
                    for each in (
                        self._link.run(),
                        self.core.acks.run(),
                        self.core.forgets.run(),
                        self._every(_MEASURE_S, self._measure),
                        self._every(_REAP_S, self._reap),
                        self._every(_PAST_S, self.ends.flush_past),
                        self._every(_KEEP_LAYERS_S, self._keep_layers),
                        self._every(_TELL_AGAIN_S, self._tell_rest),
                    )
                ]
                try:
                    yield
                except Exception as error:
                    failure = error  # raised below, so that it does not come wrapped in the group's
                finally:
                    for task in (*background, *self._attempts(), *([self._watch] if self._watch else [])):
                        task.cancel()
        finally:
            if not self.core.draining:
                self._tools.leave()
                self.core.images.leave()
            await self.packs.aclose()
            await self.layer_cache.note_uses()
            await self.core.images.aclose()
            self.core.records.close()
        if failure is not None:
            raise failure

    def _attempts(self) -> list[asyncio.Task[None]]:
        return [each.task for each in self.creates.under_way.values() if each.task is not None]

    def _adopt(self) -> None:
        """Load this boot's sandboxes; those of an earlier boot are lost, and go to the catalogue."""
        core = self.core
        if core.records.of_another_boot(core.boot_id):
            self._lose_earlier_boot()
        core.records.begin_boot(core.boot_id)
        for record in core.records.live():
            core.add(record)
        self.jobs.adopt()
        self.kept.adopt()
        self.snapshots.adopt()
        core.past.extend(core.records.not_catalogued())

    def _lose_earlier_boot(self) -> None:
        core = self.core
        lost = core.records.live()
        for record in lost:
            end = SandboxEnd(sandbox_id=record.id, cause="reboot", ended_at=core.clock())
            record.ended(end, actor="edge", detail="the machine was booted again")
        core.catalogue.add([*lost, *core.records.not_catalogued()])

    async def _on_up(self) -> None:
        """The link is (again) there. With a runtime of another version the edge lives, and refuses creates."""
        try:
            await self._agree()
        except (Unsupported, ProtocolError) as error:
            _log.error("the runtime does not fit this edge", error=error.message)
            self.core.refusal = (
                f"its runtime is of another version ({error.message}); `dsec restart` renews all parts"
            )

    async def _agree(self) -> None:
        """Listen, then compare, then record what happened unheard."""
        assert self._tasks is not None
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._tasks.create_task(self._listen())
        await asyncio.sleep(0)  # the subscription is sent before the question
        await self.jobs.mirror_all()
        await self._compare()
        await self._tools.sweep(self._joined)
        if not self.recovered:
            await self._recovery.sweep_output()
        self.recovered = True
        found = await self.core.backend.fingerprint()
        self.core.features, self.core.refusal = found.features, found.refusal
        await self._measure()

    async def _compare(self) -> None:
        await self._recovery.run()
        await self._recovery.settle_execs()
        await self.kept.compare()
        await self.snapshots.compare()
        await self.ports.tell_all()

    async def _listen(self) -> None:
        with contextlib.suppress(NodeError):  # the link is gone, and comes back with another listener
            while not await self._listened():
                await asyncio.sleep(_LISTEN_AGAIN_S)
                assert self._tasks is not None
                self._tasks.create_task(self._compare_again())

    async def _listened(self) -> bool:
        try:
            await self.ends.watch()
        except Conflict:  # the runtime has not yet noticed that this edge's former connection is gone
            return False
        return True

    async def _compare_again(self) -> None:
        """What ended before the subscription was taken was told to nobody."""
        with contextlib.suppress(NodeError):
            await self._compare()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except DSecError as error:
                _log.info("put off", work=work.__qualname__, error=error.message)
            except Exception:
                self.core.counters["failed", work.__name__] += 1
                _log.exception("background work failed", work=work.__qualname__)

    async def _measure(self) -> None:
        if self._link.connected:
            self.core.measured(await self.core.backend.stats())

    async def _tell_rest(self) -> None:
        if self._link.connected:
            await self.ports.tell_rest()

    async def _keep_layers(self) -> None:
        if self.recovered:
            await self.layer_cache.keep()

    async def _reap(self) -> None:
        """Drop what is older than a tombstone lives."""
        core = self.core
        before = core.clock() - core.config.tombstone_s
        while old := core.records.ended_before(before, _REAP_AT_ONCE):
            await self.ends.bury(old)
        core.records.expire_creates(before)
        core.records.snapshots.expire(before)
        core.records.packs.expire(before)
        await self.jobs.reap(before)

    async def _http(self, answer: Application, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = caller_of(_headers(scope))
        except Denied as error:
            await error_answer(error)(scope, receive, send)
            return
        with acting(caller):
            await answer(scope, receive, send)

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        caller = caller_of(headers)
        claim = claim_of(headers.get("dsec-job"), caller.home)

        def check() -> None:
            if claim is not None:
                self.jobs.check(claim, caller.principal)

        relay = Relay(self.core, self.execs, check, receive, send)
        self.relays[relay] = claim
        try:
            with acting(caller):
                await relay.run()
        finally:
            del self.relays[relay]

    def _cut(self, job: JobRecord) -> None:
        def older(claim: Claim | None) -> bool:
            if claim is None or (claim.project, claim.job) != (job.project, job.name):
                return False
            return claim.fence < job.fence or job.ended_at is not None

        for relay in [relay for relay, claim in self.relays.items() if older(claim)]:
            relay.cut()
        for transfer in [transfer for transfer, claim in self.transfers.items() if older(claim)]:
            transfer.close()

    def peers(self) -> type[TrustedPeers]:
        """The HTTP protocol class of its server."""
        return peers_of(self.core, self.jobs.check, self.transfers)

    def _other(self, event: JobLost | DiskRemoved | SnapshotRemoved) -> None:
        if isinstance(event, JobLost):
            self.jobs.note(event)
        elif isinstance(event, SnapshotRemoved):
            self.core.note_snapshot_removed(event.snapshot_id)
        else:
            self.core.note_disk_removed(event.sandbox_id)

    def _application(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        stores = self.stores
        routes = [
            *sandbox_routes(self.core, self.creates, self.ends, self.execs, self.pausing, self.jobs),
            *file_routes(self.core),
            *layer_routes(self.core, stores, self.layer_cache),
            *image_routes(self.core, stores),
            *node_routes(self.core, self.layer_cache),
            *usage_routes(self.core),
            *snapshot_routes(self.core, self.snapshots, self.packs),
            *port_routes(self.core, self.ports),
        ]
        self.routes = [*(guarded(self.jobs, route) for route in routes), *job_routes(self.jobs)]
        http = application(self.routes, _unknown)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket" and scope["path"] == "/v1/ws":
                await self._relay(scope, receive, send)
            elif scope["type"] == "http":
                await self._http(http, scope, receive, send)
            elif scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})

        return app


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


@answered
async def _unknown(request: Request) -> Response:
    raise NotFound(f"no route is {request.method} {request.url.path[:200]}")


async def _awaited(work: Awaitable[None]) -> None:
    await work
