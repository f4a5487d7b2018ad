"""The lock of a directory store: one holder, none for ever, none against a file system that knows no links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsec.errors import StoreUnreachable
from dsec.stores import locks
from dsec.stores.directory import DirectoryStore
from dsec.stores.locks import STALE_S, Lock


def lock(folder: Path, name: str) -> Lock:
    """One of a holder of that name."""
    mine = folder / name
    mine.touch()
    return Lock(mine, folder / "lock")


def test_a_lock_is_held_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits, and gives up in the end; after the first it has it."""
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.05)
    with lock(tmp_path, "one") as held:
        assert held.is_mine()
        with pytest.raises(StoreUnreachable), lock(tmp_path, "two"):
            pass
    with lock(tmp_path, "two") as held:
        assert held.is_mine()
    assert not (tmp_path / "lock").exists()


def test_a_dead_holders_lock_is_broken(tmp_path: Path) -> None:
    """By the file system's clock; who was only stopped finds that it is not its own, and takes no other's away."""
    with lock(tmp_path, "stopped") as stopped:
        old = (tmp_path / "stopped").stat().st_mtime - STALE_S - 1
        os.utime(tmp_path / "stopped", (old, old))
        with lock(tmp_path, "next") as held:
            assert held.is_mine()
            assert not stopped.is_mine()
            stopped.__exit__(None, None, None)
            assert held.is_mine()
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_was_taken_anew_meanwhile_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two break one stale lock: the slower one finds the faster one's in its hands, and returns it."""
    mine, place = tmp_path / "slow", tmp_path / "lock"
    for each in (mine, tmp_path / "dead", tmp_path / "fast"):
        each.touch()
    place.hardlink_to(tmp_path / "dead")
    os.utime(place, (1.0, 1.0))
    utime = os.utime

    def between(path: Path) -> None:
        place.unlink()
        place.hardlink_to(tmp_path / "fast")
        utime(path)

    monkeypatch.setattr(os, "utime", between)
    Lock(mine, place)._break()
    assert place.samefile(tmp_path / "fast")


def _answers_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are made, and asked for once more by a file system that has not heard of it."""
    link = os.link

    def twice(source: object, target: object, **options: object) -> None:
        link(source, target, **options)  # type: ignore[arg-type]
        link(source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", twice)


def test_a_lock_whose_answer_was_lost_is_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for itself; afterwards the lock is free."""
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.05)
    _answers_lost(monkeypatch)
    for _ in range(2):
        with lock(tmp_path, "one") as held:
            assert held.is_mine()
            with pytest.raises(StoreUnreachable), lock(tmp_path, "two"):
                pass
        assert not (tmp_path / "lock").exists()


def test_an_object_whose_answer_was_lost_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made it is told so, and who comes later is not."""
    _answers_lost(monkeypatch)
    store = DirectoryStore(tmp_path)
    assert store.swap("tags/t", b"one", None)
    assert not store.swap("tags/t", b"two", None)
    assert store.read("tags/t") == b"one"


def test_without_links_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such file systems get what they can: a look, then a rename."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr(os, "link", refused)
    store = DirectoryStore(tmp_path)
    store.put("tags/t", b"one")
    seen = store.stat("tags/t")
    assert seen is not None and store.swap("tags/t", b"two", seen.mark)
    assert store.read("tags/t") == b"two"
    assert [each.name for each in (tmp_path / "tmp").iterdir()] == []


def test_a_swap_whose_lock_was_broken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped for longer than a lock lives, it changes nothing."""
    store = DirectoryStore(tmp_path)
    store.put("tags/t", b"one")
    seen = store.stat("tags/t")
    assert seen is not None
    monkeypatch.setattr(Lock, "is_mine", lambda _: False)
    assert not store.swap("tags/t", b"two", seen.mark)
    assert not store.remove("tags/t", seen.mark)
    assert store.read("tags/t") == b"one"


def test_a_lock_of_before_the_clock_jumped_back(tmp_path: Path) -> None:
    """A dead holder's lock from the future is broken like an old one; a live holder finds that it lost it."""
    with lock(tmp_path, "before") as before:
        future = (tmp_path / "before").stat().st_mtime + 3e7
        os.utime(tmp_path / "before", (future, future))
        with lock(tmp_path, "after") as held:
            assert held.is_mine() and not before.is_mine()
    assert not (tmp_path / "lock").exists()
