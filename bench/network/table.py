"""Its part of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsec.demo.report import quantiles_ms

__all__ = ["network_rows"]

_Result = Mapping[str, Any]


def network_rows(results: Mapping[str, _Result]) -> list[tuple[str, str]]:
    """(what, figures) of each scenario that was run."""
    return [
        (title, cell(results[f"network {name}"]))
        for name, (title, cell) in _ROWS.items()
        if f"network {name}" in results
    ]


def _ms(samples: list[float]) -> str:
    p50, p99 = quantiles_ms(samples)
    return f"{p50:.2f} / {p99:.2f} ms"


def _create(result: _Result) -> str:
    more = quantiles_ms(result["samples_s"])[0] - quantiles_ms(result["without_s"])[0]
    return (
        f"{_ms(result['without_s'])} → {_ms(result['samples_s'])}: p50 {more:+.2f} ms, "
        f"{quantiles_ms(result['phase_s'])[0]:.2f} of it making the network (n = {len(result['samples_s'])})"
    )


def _connect(result: _Result) -> str:
    return (
        f"{_ms(result['direct_s'])} directly; {_ms(result['by_address_s'])} by address; "
        f"{_ms(result['samples_s'])} by name (n = {len(result['samples_s'])})"
    )


def _bulk(result: _Result) -> str:
    rate, direct = result["bytes_per_s"] / 1e9, result["direct_bytes_per_s"] / 1e9
    return (
        f"{rate:.2f} GB/s over {result['connections']} connections of {result['sandboxes']} sandboxes; "
        f"{direct:.2f} GB/s directly"
    )


def _http(result: _Result) -> str:
    return (
        f"{result['per_second']:.0f}/s parsed, {result['by_address_per_second']:.0f}/s unread, "
        f"{result['direct_per_second']:.0f}/s directly ({result['threads']} at once)"
    )


def _many(result: _Result) -> str:
    return (
        f"{result['count']} made in {result['created_s']:.1f} s, all changed in {result['changed_s']:.1f} s "
        f"({_ms(result['samples_s'])} each, 16 at once), reached in {result['reached_s']:.1f} s; "
        f"proxy {result['proxy_kib'] / 1024:.0f} MiB, {result['proxy_kib_each']:.1f} KiB each"
    )


_ROWS: dict[str, tuple[str, Callable[[_Result], str]]] = {
    "create": ("create → first exec without → with a policy, p50 / p99", _create),
    "change": (
        "a policy changed, p50 / p99",
        lambda result: f"{_ms(result['samples_s'])} (n = {len(result['samples_s'])})",
    ),
    "connect": ("connection and first byte there and back, p50 / p99", _connect),
    "down": ("bytes down, in sum", _bulk),
    "up": ("bytes up, in sum", _bulk),
    "http": ("HTTP connections, one request each", _http),
    "many": ("sandboxes with a policy each, all alive; each reaches its name alone", _many),
}
