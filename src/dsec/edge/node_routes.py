"""The node at a glance, and its numbers for Prometheus."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from dsec.api.access import EVERY_PROJECT
from dsec.api.types import Status
from dsec.backends.wire import Loading, NodeStats
from dsec.edge.admission import Need
from dsec.edge.caller import Caller, calling
from dsec.edge.core import Core
from dsec.edge.layer_cache import LayerCache
from dsec.edge.loading import LayerLoads
from dsec.edge.router import Route
from dsec.edge.web import answered, json_answer
from dsec.errors import DSecError

__all__ = ["node_routes"]


def _amounts(need: Need) -> dict[str, float]:
    return {name: float(value) for name, value in msgspec.structs.asdict(need).items()}


class _Numbers(Collector):
    """Read at the moment of the scrape; nothing is counted twice."""

    def __init__(self, core: Core, cache: LayerCache) -> None:
        self._core = core
        self._cache = cache
        self.loading: Loading | None = None
        """What is to be told of reads on demand: asked for before each scrape."""

    def collect(self) -> Iterator[Metric]:
        """The families."""
        core = self._core
        states = GaugeMetricFamily("dsec_sandboxes", "Sandboxes by state", labels=["state"])
        for state, count in _states(core).items():
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily("dsec_creates_queued", "Creates that wait for room", value=len(core.admission))
        for name, amounts in (("requested", core.admission.used), ("capacity", core.admission.capacity)):
            family = GaugeMetricFamily(f"dsec_{name}", f"What is {name}, by resource", labels=["resource"])
            for resource, amount in _amounts(amounts).items():
                family.add_metric([resource], amount)
            yield family
        node = GaugeMetricFamily("dsec_node", "The runtime's counts", labels=["what"])
        for what, value in _counts(core.stats).items():
            node.add_metric([what], value)
        yield node
        yield _refusals(core.stats)
        yield from _layers(core, self._cache)
        if self.loading is not None:
            yield _reads(self.loading)
        events = CounterMetricFamily("dsec_edge_events", "What happened, and how", labels=["kind", "what"])
        for (kind, what), count in list(core.counters.items()):
            events.add_metric([kind, what], count)
        events.add_metric(["runtime", "reconnected"], core.link.reconnects)
        yield events


def _counts(stats: NodeStats) -> dict[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(stats).items() if name != "audit"}


def _refusals(stats: NodeStats) -> Metric:
    family = CounterMetricFamily(
        "dsec_sandbox_events",
        "What sandboxes tried and did not get, since the runtime began",
        labels=["kind", "reason"],
    )
    for named, count in stats.audit.items():
        kind, _, reason = named.partition(" ")
        family.add_metric([kind, reason], count)
    return family


def _layers(core: Core, cache: LayerCache) -> Iterator[Metric]:
    size = GaugeMetricFamily(
        "dsec_layer_cache_bytes", "What the node's own layers take, and their marks", labels=["what"]
    )
    size.add_metric(["cached"], cache.cached_bytes)
    for name, value in msgspec.structs.asdict(cache.marks()).items():
        size.add_metric([name], value)
    yield size
    absent = len(core.images.layers.absent)
    yield GaugeMetricFamily("dsec_layers_evicted", "Layers that are known and not here", value=absent)


def _states_in(core: Core, caller: Caller) -> Counter[str]:
    """Of one project."""
    states = Counter(str(each.state) for each in core.live.values() if caller.sees(each.project))
    states["ended"] = core.records.count_ended(caller.project)
    return states


def _reads(loading: Loading) -> Metric:
    family = GaugeMetricFamily(
        "dsec_layer_loading", "Reads of layers on demand since the holder began", labels=["what"]
    )
    for what, value in _totals(loading).items():
        family.add_metric([what], value)
    return family


def _totals(loading: Loading) -> dict[str, int]:
    """Flat, in the holder's words."""
    own = {"fetcher": int(loading.fetcher), "oldest_wait_ms": loading.oldest_wait_ms, "layers": len(loading.layers)}
    return own | msgspec.structs.asdict(loading.counts)


def _states(core: Core) -> Counter[str]:
    states = Counter(str(each.state) for each in core.live.values())
    states["ended"] = core.records.count_ended()
    return states


class _Node:
    """The answers."""

    def __init__(self, core: Core, cache: LayerCache) -> None:
        self._core = core
        self._loads = LayerLoads(core.backend)
        self._registry = CollectorRegistry()
        self._numbers = _Numbers(core, cache)
        self._registry.register(self._numbers)

    async def _loading(self) -> Loading | None:
        """None where nothing is read on demand, or the holder does not answer, which is counted."""
        if self._core.config.reading != "filled":
            return None
        try:
            return await self._loads.report()
        except DSecError:
            self._core.counters["layers", "holder silent"] += 1
            return None

    async def status(self, _: Request) -> Response:
        core, caller = self._core, calling()
        # Without an answer its part says "away" below, and the numbers are the last ones.
        with contextlib.suppress(DSecError):
            core.measured(await core.backend.stats())
        loading = await self._loading()
        return json_answer(
            Status(
                node=core.config.node,
                version=version("dsec-platform"),
                boot_id=core.boot_id,
                parts=[
                    {"name": "edge", "state": "running"},
                    {"name": "runtime", "state": "running" if core.link.connected else "away"}
                    | ({} if core.refusal is None else {"refusal": core.refusal}),
                ],
                sandboxes=dict(_states(core) if caller.project == EVERY_PROJECT else _states_in(core, caller)),
                queued=len(core.admission),
                requests=_amounts(core.admission.used),
                capacity=_amounts(core.admission.capacity),
                stats=_counts(core.stats),
                features=[msgspec.structs.asdict(each) for each in core.features],
                reader=core.config.reading,
                reader_why=core.config.reading_why,
                loading={} if loading is None else _totals(loading),
            )
        )

    async def metrics(self, _: Request) -> Response:
        self._numbers.loading = await self._loading()
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")


def node_routes(core: Core, cache: LayerCache) -> list[Route]:
    """All of them."""
    own = _Node(core, cache)
    return [
        Route("GET", "/v1/status", answered(own.status)),
        Route("GET", "/metrics", answered(own.metrics)),
    ]
