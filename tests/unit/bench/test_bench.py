"""The benchmark's own arithmetic and order; what it measures is never asserted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bench import scenarios
from bench.memory import idle_memory, meminfo, per_sandbox
from bench.phases import breakdown
from bench.record import Record, load
from bench.run import OWN, SCENARIOS, Plan, measure
from bench.table import markdown, ratio


@dataclass
class FakeTarget:
    """Sandboxes that are numbers."""

    name: str = "dsec"
    live: set[int] = field(default_factory=set)
    most_live: int = 0
    made: int = 0
    execs: int = 0
    leaks: bool = False

    async def create(self) -> int:
        """The next number."""
        await asyncio.sleep(0)
        self.made += 1
        self.live.add(self.made)
        self.most_live = max(self.most_live, len(self.live))
        return self.made

    async def true(self, handle: int) -> None:
        """Only live sandboxes run anything."""
        assert handle in self.live
        self.execs += 1
        await asyncio.sleep(0)

    async def stop(self, handle: int) -> None:
        """Each is stopped once."""
        self.live.remove(handle)
        await asyncio.sleep(0)

    async def held(self) -> int:
        """What lives."""
        return len(self.live)

    async def clean(self) -> int:
        """What lived."""
        found = len(self.live) + self.leaks
        self.live.clear()
        return found


def record() -> Record:
    """An empty record of a machine."""
    machine = {"processor": "CPU", "cpus": 2, "memory_gib": 24.0, "kernel": "6.18", "python": "3.11"}
    return Record("python -m bench", machine, "abc", 0.0)


def test_serial_holds_one_sandbox_at_a_time() -> None:
    """No sandbox of an earlier round lives in a later one, and each ran ``true`` once."""
    target = FakeTarget()
    assert len(asyncio.run(scenarios.first_exec_serial(target, 7))) == 7
    assert (target.most_live, target.made, target.execs, target.live) == (1, 7, 7, set())


def test_parallel_holds_as_many_as_it_says() -> None:
    """Four workers share twelve sandboxes and never hold more than four."""
    target = FakeTarget()
    assert len(asyncio.run(scenarios.first_exec_parallel(target, 12, 4))) == 12
    assert (target.most_live, target.made, target.live) == (4, 12, set())


def test_a_burst_holds_all_at_once() -> None:
    """All of a burst live together until the last has its result."""
    target = FakeTarget()
    wall, samples = asyncio.run(scenarios.burst(target, 20))
    assert len(samples) == 20
    assert wall >= max(samples)
    assert (target.most_live, target.live) == (20, set())


def test_warm_execs_share_a_sandbox_and_leave_the_first_out() -> None:
    """n samples are n + 1 execs in one sandbox."""
    target = FakeTarget()
    assert len(asyncio.run(scenarios.warm_exec(target, 5))) == 5
    assert (target.made, target.execs, target.live) == (1, 6, set())


def test_creates_beside_warm_execs_are_all_stopped() -> None:
    """Whatever the background made is gone when the scenario returns."""
    target = FakeTarget()
    _, samples = asyncio.run(scenarios.warm_exec_while_creating(target, 50, 1_000))
    assert len(samples) == 50
    assert target.live == set()


def test_sandboxes_left_at_the_end_are_an_error() -> None:
    """A benchmark that leaks does not print figures as if nothing had happened."""
    plan = Plan.quick(frozenset({"serial"}))
    asyncio.run(measure(FakeTarget(), record(), plan))
    with pytest.raises(RuntimeError, match="1 sandboxes"):
        asyncio.run(measure(FakeTarget(leaks=True), record(), plan))


def test_a_scenario_that_fails_leaves_nothing() -> None:
    """When one create of a burst fails, those that were made are stopped all the same."""

    @dataclass
    class Failing(FakeTarget):
        async def create(self) -> int:
            handle = await super().create()
            if handle == 10:
                raise RuntimeError("no more")
            return handle

    target = Failing()
    with pytest.raises(RuntimeError, match="no more"):
        asyncio.run(measure(target, record(), Plan.quick(frozenset({"burst"}))))
    assert target.live == set()


def test_docker_never_gets_more_than_dsec() -> None:
    """The comparison is the same scenarios, shorter; what is dsec's own is left out."""
    plan = Plan.full(frozenset(SCENARIOS))
    other = plan.for_docker()
    assert other.only == plan.only.difference(OWN)
    assert other.burst == plan.burst
    assert other.serial <= plan.serial
    assert other.idle <= plan.idle


def test_meminfo_is_read_by_field() -> None:
    """Known fields in KiB, unknown ones left out, missing ones 0."""
    found = meminfo("MemFree:   100 kB\nPercpu:  8 kB\nHugePages_Total:  0\n")
    assert (found["MemFree"], found["Percpu"], found["Shmem"]) == (100, 8, 0)
    assert "HugePages_Total" not in found


def test_memory_per_sandbox_leaves_the_page_cache_out() -> None:
    """1,000 KiB became unfree, of which 300 are cache (but 100 of these are tmpfs, which is no cache): 800 remain."""
    before = meminfo("MemFree: 5000 kB\nCached: 1000 kB\nShmem: 0 kB\nPercpu: 100 kB\nMemAvailable: 6000 kB")
    after = meminfo("MemFree: 4000 kB\nCached: 1300 kB\nShmem: 100 kB\nPercpu: 180 kB\nMemAvailable: 5300 kB")
    cost = per_sandbox(before, after, count=10, cpus=2)
    assert cost["total"] == 80.0
    assert cost["b"] == 4.0
    assert cost["a"] + 2 * cost["b"] == cost["total"]
    assert cost["available_lost"] == 70.0


def test_idle_memory_says_what_was_made_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform with half of it ready shows half its memory; the table must not hide that."""

    async def settled() -> dict[str, int]:
        return meminfo("MemFree: 1000 kB")

    monkeypatch.setattr("bench.memory._settled", settled)

    @dataclass
    class Ready(FakeTarget):
        async def held(self) -> int:
            return max(50, len(self.live))

    for target, note in ((FakeTarget(), ""), (Ready(), ", 48 of them made in advance")):
        kept = record()
        kept.add("dsec", "idle memory", **asyncio.run(idle_memory(target, 100)))
        assert f"(at 100{note})" in markdown(kept)
        assert target.live == set()


def test_the_breakdown_keeps_to_the_order_of_a_request() -> None:
    """The way there first, then the create with the node's own phases, then execs, then the stop."""
    steps = breakdown({"stop": [3.0], "create": [2.0, 4.0], "runtime.overlay": [0.5], "HTTP to the apiserver": [0.2]})
    assert [name for name, _, _ in steps] == ["HTTP to the apiserver", "create", "runtime.overlay", "stop"]
    assert steps[1] == ("create", 2.0, 4.0)


def test_ratios_say_how_many_times_better() -> None:
    """Less time is better, more rounds a second is better, and nothing is said where one side is missing."""
    assert ratio("serial", {"samples_s": [0.005]}, {"samples_s": [0.180]}) == "36.0×"
    assert ratio("sustained", {"per_second": 200.0}, {"per_second": 5.0}) == "40.0×"
    assert ratio("burst", {"walls_s": [0.3, 0.4, 0.9]}, {"walls_s": [8.0]}) == "20.0×"
    assert ratio("serial", {"samples_s": [0.005]}, None) == "–"


def test_load_is_told_in_its_own_units() -> None:
    """Rates, bytes a second with the memory they cost, and seconds for how many."""
    kept = record()
    kept.add("dsec", "throughput", [0.01], per_second=1234.5, sandboxes=200, parallel=64)
    before, highest = {"client": 1024, "edge": 1024}, {"client": 3072, "edge": 2048}
    kept.add(
        "dsec",
        "stream",
        [0.004],
        quiet_s=[0.002],
        mib=200,
        mib_per_second=512.3,
        before_kib=before,
        highest_kib=highest,
    )
    kept.add("dsec", "readopt edge", [1.25], sandboxes=500)
    text = markdown(kept)
    assert "| 1234/s over 200 |" in text
    assert "| 512 MiB/s; 2.0 → 4.0 ms (most memory gained: 2 MiB, client) |" in text
    assert "| 1.25 s for 500 |" in text


def test_a_saved_record_gives_the_same_tables(tmp_path: Path) -> None:
    """The README's table can be made again from the raw samples that were kept."""
    kept = record()
    kept.add("dsec", "serial", [0.004, 0.005, 0.015])
    kept.add("dsec", "burst", [0.3], walls_s=[0.35], count=100)
    kept.add("dsec", "phases", samples_ms={"create": [4.0], "first exec": [1.0]})
    kept.add("docker", "serial", [0.2])
    text = markdown(kept)
    assert markdown(load(kept.save(tmp_path))) == text
    assert (
        "| create → first exec, serial, p50 / p99 | 5.0 / 15.0 ms (n = 3) | 200.0 / 200.0 ms (n = 1) | 40.0× |"
        in text
    )
    assert "| burst: all created, first exec of each done | 0.35 s for 100 (median of 1) | – | – |" in text
    assert "| create | 4.00 | 4.00 |" in text


def test_files_have_a_row() -> None:
    """Uploads and downloads are told as MB/s of the median round."""
    record = Record("bench", {"processor": "p", "cpus": 2, "memory_gib": 1, "kernel": "k"}, "c", 0.0)
    record.add("dsec", "files", mib=1000, upload_s=[2.0, 1.0, 9.0], download_s=[4.0, 4.0, 4.0])
    assert "| 524 / 262 MB/s (1000 MiB, median of 3) |" in markdown(record)


def test_networks_have_a_table_of_their_own() -> None:
    """What was measured is told in its own units, what was not is left out, and a record without any has no table."""
    kept = record()
    assert "Networks" not in markdown(kept)
    kept.add("dsec", "network create", [0.012, 0.012], without_s=[0.010, 0.011], phase_s=[0.001, 0.001])
    kept.add("dsec", "network down", bytes_per_s=1.5e9, direct_bytes_per_s=3e9, connections=4, sandboxes=2)
    text = markdown(kept)
    assert "10.00 / 11.00 ms → 12.00 / 12.00 ms: p50 +2.00 ms, 1.00 of it" in text
    assert "1.50 GB/s over 4 connections of 2 sandboxes; 3.00 GB/s directly" in text
    assert "bytes up" not in text
