"""Layers made one show through overlay exactly what they showed one by one."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.integration.images.stacks import Stacks

from dsec.layering.making import FromLayers, make, write_layer
from dsec.layering.trees import Directory, Inode, Regular, Special, Symlink, whiteout

pytestmark = pytest.mark.node

NAMES = (b"a", b"b", b"\xff\xfe", b"-")
ATTRIBUTES: tuple[dict[bytes, bytes], ...] = (
    {},
    {b"user.x": b"1"},
    {b"security.capability": b"\x01\x00\x00\x02" + bytes(16)},
    {b"trusted.t": b"\0\xff"},
)
Spec = tuple[Any, ...]
"""A file: ("file", content, mode, uid), ("dir", opaque, mode, names), ("gone",), ("hard", number), …"""

MODES = st.sampled_from([0o644, 0o4755, 0o2711])
leaves: st.SearchStrategy[Spec] = st.one_of(
    st.tuples(st.just("file"), st.integers(0, 3), MODES, st.sampled_from([0, 70_000])),
    st.tuples(st.just("gone")),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"../b", b"x" * 4_000])),
    st.tuples(st.just("device"), st.sampled_from([1 << 8 | 3, 5 << 8])),
    st.tuples(st.just("fifo")),
    st.tuples(st.just("socket")),
    st.tuples(st.just("hard"), st.integers(0, 3)),
)  # fmt: skip


def directories(children: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    """A directory of them."""
    return st.tuples(
        st.just("dir"),
        st.booleans(),
        st.sampled_from([0o755, 0o1777]),
        st.integers(0, 3),
        st.dictionaries(st.sampled_from(NAMES), children, max_size=4),
    )


files = st.recursive(leaves, directories, max_leaves=8)
layers = st.dictionaries(st.sampled_from(NAMES), files, max_size=4)


class Drawn:
    """The contents of files that tests made up."""

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        assert isinstance(file.source, bytes)
        yield file.source


def tree_of(names: dict[bytes, Spec], number: int) -> Directory:
    """The tree of a layer; ``number`` gives its files another time."""
    linkable: list[Inode] = []
    time = 1_000_000_000 * number + 5

    def inode(spec: Spec) -> Inode:
        match spec:
            case ("file", content, mode, uid):
                data = b"%d of %d" % (content, number)
                made = Regular(stat.S_IFREG | mode, uid, 0, time, ATTRIBUTES[content], size=len(data), source=data)
                linkable.append(made)
                return made
            case ("dir", opaque, mode, attributes, children):
                directory = Directory(stat.S_IFDIR | mode, number, 0, time, ATTRIBUTES[attributes], opaque=opaque)
                directory.children = {name: inode(child) for name, child in children.items()}
                return directory
            case ("gone",):
                return whiteout()
            case ("link", target):
                return Symlink(target, 1, 2, time)
            case ("device", rdev):
                return Special(stat.S_IFCHR | 0o600, 0, 0, time, rdev=rdev)
            case ("fifo" | "socket" as kind,):
                return Special((stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK) | 0o644, 0, 0, time)
            case ("hard", which):
                return linkable[which % len(linkable)] if linkable else Special(stat.S_IFIFO, 0, 0, time)
        raise AssertionError(spec)

    root = Directory(stat.S_IFDIR | 0o755, 0, number, time)
    root.children = {name: inode(spec) for name, spec in names.items()}
    return root


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """Where layers are mounted."""
    with Stacks(tmp_path_factory.mktemp("stacks") / "points") as made:
        yield made


FILE: Spec = ("file", 1, 0o644, 0)
GONE: Spec = ("gone",)


def a_dir(**children: Spec) -> Spec:
    """A plain directory."""
    return ("dir", False, 0o755, 0, {name.encode(): spec for name, spec in children.items()})


def an_opaque(**children: Spec) -> Spec:
    """One that hides what is below."""
    return ("dir", True, 0o755, 0, {name.encode(): spec for name, spec in children.items()})


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(layers, min_size=2, max_size=5), cut=st.tuples(st.integers(0, 2), st.integers(0, 2)))
# A directory removed and made again; one that was a file; a mark that ends the search within the run; a whiteout of
# what lies below the run, alone in its directory; a hard link of which one name is replaced.
@example(parts=[{b"a": a_dir(a=FILE, b=FILE)}, {b"a": GONE}, {b"a": a_dir(b=FILE)}], cut=(1, 0))
@example(parts=[{b"a": a_dir(a=FILE)}, {b"a": FILE}, {b"a": a_dir(b=FILE)}], cut=(1, 0))
@example(parts=[{b"a": a_dir(a=FILE)}, {b"a": an_opaque(b=FILE)}, {b"a": a_dir(a=GONE)}], cut=(1, 0))
@example(parts=[{b"b": FILE}, {b"a": a_dir(a=GONE)}, {b"a": a_dir(b=GONE)}], cut=(1, 0))
@example(parts=[{b"a": a_dir(a=a_dir(a=FILE))}, {b"a": a_dir(a=GONE)}, {b"a": a_dir(a=a_dir(b=FILE))}], cut=(0, 0))
@example(parts=[{b"a": FILE, b"b": ("hard", 0)}, {b"a": FILE}], cut=(0, 0))
def test_layers_made_one_show_the_same(stacks: Stacks, parts: list[dict[bytes, Spec]], cut: tuple[int, int]) -> None:
    """Random layers, a run of them made one, with others below and above: not a bit of what is mounted differs."""
    below, above = min(cut[0], len(parts) - 2), cut[1]
    end = max(below + 2, len(parts) - above)
    with tempfile.TemporaryDirectory() as scratch:
        made = []
        for number, part in enumerate(parts):
            out = Path(scratch) / str(number)
            out.mkdir()
            write_layer(tree_of(part, number), Drawn(), out)
            made.append(out)
        whole = Path(scratch) / "whole"
        whole.mkdir()
        make(FromLayers(layers=[str(each) for each in made[below:end]]), whole)
        apart, together = stacks.seen(made, [*made[:below], whole, *made[end:]])
    assert apart == together
