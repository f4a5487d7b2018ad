"""The apiserver's own counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

__all__ = ["Metrics"]


class Metrics:
    """Counters in a registry of their own, so that several servers can live in one process (tests)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "dsec_apiserver_requests",
            "HTTP requests answered",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._denied = Counter("dsec_apiserver_denied", "Requests without a valid token", registry=self._registry)
        self._websockets = Gauge("dsec_apiserver_websockets", "WebSockets open", registry=self._registry)
        self._by_answer: dict[tuple[str, str, int], Counter] = {}

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an answer."""
        key = (method, route, status)
        counter = self._by_answer.get(key)
        if counter is None:
            counter = self._by_answer[key] = self._requests.labels(method, route, str(status))
        counter.inc()

    def denied(self) -> None:
        """Count a request without a valid token."""
        self._denied.inc()

    def websocket(self, change: int) -> None:
        """A WebSocket opened (+1) or closed (−1)."""
        self._websockets.inc(change)

    def text(self) -> bytes:
        """The Prometheus text."""
        return generate_latest(self._registry)
