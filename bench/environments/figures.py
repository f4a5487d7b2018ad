"""A record of environments as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.record import Record
from dsec.demo.report import quantiles_ms

__all__ = ["markdown"]

Result = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Result]]
_TARGETS = ("dsec", "eager", "docker", "local")


def markdown(record: Record) -> str:
    """The whole record: one table, and what it was measured with."""
    machine, told = record.hardware, record.results.get("setting", {}).get("setting", {})
    head = (
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"load {machine['load_at_start']}; `{record.command}`, commit {record.commit or 'unknown'}; scale "
        f"{told.get('scale', 1):g}, store with {1e3 * told.get('latency_s', 0):g} ms and "
        f"{told.get('bytes_per_s', 0) / 1e9:g} GB/s"
    )
    rows = [["what", "target", "dsec", "copy + extract", "docker load + run", "local files"]]
    for title, target, names, cell in _ROWS:
        found = [_found(record.results, each, names) for each in _TARGETS]
        if any(each is not None for each in found):
            rows.append([title, target, *("–" if each is None else cell(each) for each in found)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return head + "\n\n" + "\n".join(lines) + "\n" + "".join(f"\n{each}" for each in _ratios(record.results))


def _found(results: Results, target: str, name: str) -> Result | None:
    return results.get(target, {}).get(name)


def _times(result: Result) -> str:
    samples = result["samples_s"]
    if len(samples) == 1:
        return _seconds(samples[0])
    p50, p99 = quantiles_ms(samples)
    return f"{p50:.1f} / {p99:.1f} ms (n = {len(samples)})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _first(result: Result) -> str:
    said = _times(result)
    if "read_bytes" in result:
        share = 100 * max(result["read_bytes"]) / result["data_bytes"]
        said += f", {share:.2f} % of {_bytes(result['data_bytes'])} read"
    if "pull_s" in result:
        said += f"; its metadata before: {_seconds(sorted(result['pull_s'])[len(result['pull_s']) // 2])}"
    for name, words in (("copy_s", "copied and extracted"), ("load_s", "loaded")):
        if name in result:
            said += f", of it {words} {_seconds(result[name])}"
    return said


def _rate(result: Result) -> str:
    rates = sorted(each[0] for each in result["bytes_per_s"])
    return f"{rates[len(rates) // 2] / 1e6:.0f} MB/s"


def _call(result: Result) -> str:
    return f"{sorted(result['nanoseconds'])[len(result['nanoseconds']) // 2]:.0f} ns"


def _burst(result: Result) -> str:
    of = f" over {result['environments']} environments" if "environments" in result else ""
    return f"{result['wall_s']:.2f} s for {result['sandboxes']}{of}"


def _written(result: Result) -> str:
    return _bytes(result["written_bytes"] if "written_bytes" in result else result["bytes"])


def _waits(result: Result) -> str:
    if "loading" not in result:
        return "–"
    counts = result["loading"]
    each = counts["bytes"] / max(1, counts["requests"])
    return (
        f"at most {counts['p99_ms']:g} ms (p50 {counts['p50_ms']:g}), {counts['misses']:.0f} misses, "
        f"{counts['requests']:.0f} requests of {_bytes(each)}"
    )


def _replace(result: Result) -> str:
    return (
        f"node {_bytes(result['node_bytes'])}, store {_bytes(result['store_bytes'])}, for {result['environments']} "
        f"environments (the toolkit: {_bytes(result['toolkit_bytes'])}, {_bytes(result['toolkit_stored_bytes'])} "
        f"in the store)"
    )


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


_ROWS: Sequence[tuple[str, str, str, Callable[[Result], str]]] = (
    ("mount of base, workspace, 3 toolkits, p50 / p99", "≤ 2 ms", "mount", _times),
    ("first sandbox and exec of the large image", "≤ 300 ms, < 1 % read", "first exec", _first),
    ("the same until `import asyncio, …` has run there", "", "import", _first),
    ("second sandbox and exec on that node", "≤ 15 ms", "second sandbox", _times),
    ("written to the node's disk for these", "", "first writes", _written),
    ("4 KiB reads forwards, cached", "≥ 90 % of local", "forwards cached", _rate),
    ("4 KiB reads at random, cached", "≥ 90 % of local", "random cached", _rate),
    ("a read of no bytes: the call itself, and the filter", "", "empty read", _call),
    ("4 KiB reads forwards, filled but not cached", "≥ 70 % of local", "forwards filled", _rate),
    ("4 KiB reads at random, filled but not cached", "≥ 70 % of local", "random filled", _rate),
    ("4 KiB reads forwards, unfilled", "", "forwards unfilled", _rate),
    ("4 KiB reads at random, unfilled", "", "random unfilled", _rate),
    ("burst from a cold store: all programs have read", "≥ 1.7× eager", "burst", _burst),
    ("written to the node's disk by it", "≤ 43 % of eager", "burst", _written),
    ("waits of reads in it for what was not there, p99", "reported", "burst", _waits),
    ("`pack_diff` of 100 MB", "≤ 1 s", "pack", _times),
    ("space of a removed sandbox back", "≤ 30 s", "space", _times),
    ("one toolkit replaced: bytes written", "the toolkit's", "replace", _replace),
)


def _ratios(results: Results) -> list[str]:
    """What the targets ask for as ratios, in words."""
    said = []
    ours, theirs = _found(results, "dsec", "burst"), _found(results, "eager", "burst")
    if ours and theirs:
        said.append(
            f"- burst: {theirs['wall_s'] / ours['wall_s']:.2f}× eager's speed, "
            f"{100 * ours['written_bytes'] / theirs['written_bytes']:.1f} % of its local writes"
        )
    for state in ("cached", "filled"):
        for way in ("forwards", "random"):
            inside, outside = _found(results, "dsec", f"{way} {state}"), _found(results, "local", f"{way} {state}")
            if inside and outside:
                said.append(
                    f"- {way}, {state}: {100 * _median(inside) / _median(outside):.0f} % of the local file system"
                )
    image = _found(results, "dsec", "first exec")
    if image:
        said.append(
            f"- the large image: {image['image_files']} files, {_bytes(image['image_bytes'])}; in the store "
            f"{_bytes(image['stored_bytes'])}, as tar.gz {_bytes(image['archive_bytes'])}; made in "
            f"{image['made_s']:g} s"
        )
    return [f"{each}\n" for each in said]


def _median(result: Result) -> float:
    rates = sorted(each[0] for each in result["bytes_per_s"])
    return float(rates[len(rates) // 2])
