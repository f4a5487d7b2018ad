"""Which layers of an image are put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.images.collapse_plan import FEW, Part, runs

ALONE = frozenset({"mine"})
SHARED = frozenset({"mine", "other"})


def parts(*sizes: int, images: frozenset[str] = ALONE) -> list[Part]:
    """Layers of these sizes."""
    return [Part(f"{images is SHARED:d}-{i}", size, images) for i, size in enumerate(sizes)]


def test_small_neighbours_become_one() -> None:
    """As many as fit into the limit; a layer above it stays alone, and order is kept."""
    found = runs(parts(10, 20, 500, 5, 5, 5), most_bytes=100, most_layers=16)
    assert found == [("0-0", "0-1"), ("0-2",), ("0-3", "0-4", "0-5")]


def test_images_of_few_layers_stay() -> None:
    """Up to four layers are mounted as they are, and with a limit of 0 any number of them."""
    assert runs(parts(1, 1, 1, 1), most_bytes=100, most_layers=1) == [("0-0",), ("0-1",), ("0-2",), ("0-3",)]
    assert len(runs(parts(*[1] * 30), most_bytes=0, most_layers=5)) == 30


def test_what_images_share_stays_shared() -> None:
    """A base that another image has too is put together by itself, so both have the same one."""
    base, own = parts(1, 1, 1, 1, images=SHARED), parts(1, 1, 1)
    assert runs([*base, *own], most_bytes=100, most_layers=16) == [
        tuple(each.digest for each in base),
        tuple(each.digest for each in own),
    ]


def test_never_more_than_the_most() -> None:
    """Where size leaves too many, the smallest neighbours are joined."""
    assert runs(parts(90, 90, 20, 30, 90), most_bytes=1, most_layers=4)[1:3] == [("0-1",), ("0-2", "0-3")]
    assert len(runs(parts(90, 90, 20, 30, 90), most_bytes=1, most_layers=2)) == 2


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=40), st.integers(0, 300), st.integers(1, 20))
def test_every_layer_once_in_order(sizes: list[tuple[int, bool]], most_bytes: int, most_layers: int) -> None:
    """Whatever the sizes: the runs are the layers, in order, and no more of them than allowed."""
    given_parts = [Part(str(i), size, SHARED if shared else ALONE) for i, (size, shared) in enumerate(sizes)]
    found = runs(given_parts, most_bytes=most_bytes, most_layers=most_layers)
    assert [digest for run in found for digest in run] == [part.digest for part in given_parts]
    assert all(found)
    if most_bytes and len(given_parts) > FEW:
        assert len(found) <= most_layers
