"""A record as Markdown tables, for the README and for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.files import megabytes_per_second
from bench.network import network_rows
from bench.phases import breakdown
from bench.record import Record
from dsec.demo.report import quantiles_ms

__all__ = ["markdown", "ratio"]

_TITLES = {
    "serial": "create → first exec, serial, p50 / p99",
    "parallel": "create → first exec, 16 at once, p50 / p99",
    "burst": "burst: all created, first exec of each done",
    "computesdk sequential": "ComputeSDK protocol, sequential, p50 / p99",
    "computesdk staggered": "ComputeSDK protocol, staggered by 200 ms, p50 / p99",
    "computesdk concurrent": "ComputeSDK protocol, all at once, p50 / p99",
    "sustained": "sustained create + exec + stop",
    "warm": "warm exec of `true`, p50 / p99",
    "warm while creating": "the same while 50 sandboxes/s are created",
    "files": "upload / download of one file",
    "session execute": "one command beside its session: `true`, p50 / p99",
    "session open": "a session opened, p50 / p99",
    "session run": "`true` run in a session, p50 / p99",
    "throughput": "execs of `true` over many sandboxes, usage and OOM facts included",
    "stream": "output of one exec; `true` beside it, p50 without → with",
    "flood": "`true` beside a sandbox that floods everything, p50 without → with",
    "tree": "kill of a process tree, confirmed",
    "readopt edge": "edge killed: until every live sandbox is answered for",
    "readopt runtime": "runtime killed: until every live sandbox is answered for",
    "idle memory": "idle memory per sandbox, beyond the page cache",
}


def markdown(record: Record) -> str:
    """The whole record."""
    machine = record.hardware
    head = (
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux {machine['kernel']}; "
        f"`{record.command}`, commit {record.commit or 'unknown'}"
    )
    targets = list(record.results)
    rows = [["what", *targets, *(["docker ÷ dsec"] if _comparable(targets) else [])]]
    for scenario, title in _TITLES.items():
        found = [record.results[target].get(scenario) for target in targets]
        if not any(found):
            continue
        cells = [_cell(scenario, each) if each else "–" for each in found]
        if _comparable(targets):
            both = (record.results["dsec"].get(scenario), record.results["docker"].get(scenario))
            cells.append(ratio(scenario, *both))
        rows.append([title, *cells])
    parts = [head, _table(rows)] if len(rows) > 1 else [head]
    networks = network_rows(record.results.get("dsec", {}))
    if networks:
        parts += ["Networks (servers in a namespace of the same machine):", _table([["what", "dsec"], *networks])]
    phases = record.results.get("dsec", {}).get("phases")
    if phases:
        listed = [["step", "p50, ms", "p99, ms"]]
        listed += [[name, f"{p50:.2f}", f"{p99:.2f}"] for name, p50, p99 in breakdown(phases["samples_ms"])]
        parts += ["Where the time goes (one sandbox after the other):", _table(listed)]
    return "\n\n".join(parts) + "\n"


def _comparable(targets: Sequence[str]) -> bool:
    return "dsec" in targets and "docker" in targets


def _cell(scenario: str, result: Mapping[str, Any]) -> str:
    if scenario == "idle memory":
        cost = result["per_sandbox_kib"]
        parts = f"{cost['a']:.0f} + {cost['b']:.1f} × CPUs; kernel's own: {cost['kernel']:.0f}"
        early = result["count"] - result["made"]
        note = f", {early} of them made in advance" if early > result["count"] // 20 else ""
        return f"{cost['total']:.0f} KiB = {parts} (at {result['count']}{note})"
    if scenario == "files":
        rates = [megabytes_per_second(result["mib"], result[way]) for way in ("upload_s", "download_s")]
        return f"{rates[0]:.0f} / {rates[1]:.0f} MB/s ({result['mib']} MiB, median of {len(result['upload_s'])})"
    if scenario == "sustained":
        return f"{result['per_second']:.0f}/s"
    if scenario in _LOAD:
        return _LOAD[scenario](result)
    if scenario == "burst":
        return f"{_typical(scenario, result):.2f} s for {result['count']} (median of {len(result['walls_s'])})"
    p50, p99 = quantiles_ms(result["samples_s"])
    reached = f", at {result['creates_per_second']:.0f}/s" if "creates_per_second" in result else ""
    return f"{p50:.1f} / {p99:.1f} ms (n = {len(result['samples_s'])}{reached})"


def _stream(result: Mapping[str, Any]) -> str:
    grown = {name: kib - result["before_kib"][name] for name, kib in result["highest_kib"].items()}
    most = max(grown, key=lambda name: grown[name])
    without, beside = quantiles_ms(result["quiet_s"])[0], quantiles_ms(result["samples_s"])[0]
    memory = f"most memory gained: {grown[most] / 1024:.0f} MiB, {most}"
    return f"{result['mib_per_second']:.0f} MiB/s; {without:.1f} → {beside:.1f} ms ({memory})"


def _flood(result: Mapping[str, Any]) -> str:
    without, beside = quantiles_ms(result["quiet_s"])[0], quantiles_ms(result["samples_s"])[0]
    return f"{without:.1f} → {beside:.1f} ms ({beside / without:.1f}×)"


def _readopt(result: Mapping[str, Any]) -> str:
    return f"{result['samples_s'][0]:.2f} s for {result['sandboxes']}"


_LOAD: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "throughput": lambda result: f"{result['per_second']:.0f}/s over {result['sandboxes']}",
    "stream": _stream,
    "flood": _flood,
    "tree": lambda result: f"{result['samples_s'][0]:.2f} s for {result['processes']} processes",
    "readopt edge": _readopt,
    "readopt runtime": _readopt,
}


def _typical(scenario: str, result: Mapping[str, Any]) -> float:
    if scenario == "idle memory":
        return float(result["per_sandbox_kib"]["total"])
    if scenario == "sustained":
        return float(result["per_second"])
    if scenario == "burst":
        walls = sorted(result["walls_s"])
        return float(walls[(len(walls) - 1) // 2])
    return quantiles_ms(result["samples_s"])[0]


def ratio(scenario: str, ours: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """How many times better ours is; "–" where one of both is missing."""
    if not ours or not other:
        return "–"
    mine, theirs = _typical(scenario, ours), _typical(scenario, other)
    better = mine / theirs if scenario == "sustained" and theirs else theirs / mine if mine else math.nan
    return "–" if math.isnan(better) else f"{better:.1f}×"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines)
