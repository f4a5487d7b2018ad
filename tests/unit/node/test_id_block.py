"""Which block of host IDs a node gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import CapacityError, Conflict
from dsec.node.id_block import BLOCKS, FIRST_ID, IDS_PER_NODE, Claim, choose


def test_first_node_gets_the_first_block() -> None:
    """An empty register gives the first block, and notes it."""
    block, claims = choose([], "local", "/run/dsec/local", lambda _: True)
    assert block == FIRST_ID
    assert claims == [Claim(FIRST_ID, "local", "/run/dsec/local")]


def test_node_keeps_its_block() -> None:
    """A node that comes up again gets the block it had, although an earlier one is free."""
    own = Claim(FIRST_ID + 3 * IDS_PER_NODE, "local", "/run/dsec/local")
    block, _ = choose([own], "local", "/run/dsec/local", lambda _: False)
    assert block == own.block


def test_block_of_a_dead_node_is_given_away() -> None:
    """A claim whose node is gone does not hold its block."""
    dead = Claim(FIRST_ID, "old", "/run/dsec/old")
    block, claims = choose([dead], "new", "/run/dsec/new", lambda _: False)
    assert block == FIRST_ID
    assert dead not in claims


def test_live_node_of_the_same_name_elsewhere_is_refused() -> None:
    """Cgroups go by the node's name, so two live nodes cannot share one."""
    other = Claim(FIRST_ID, "local", "/tmp/a/run/dsec/local")
    with pytest.raises(Conflict, match="runs already"):
        choose([other], "local", "/run/dsec/local", lambda _: True)


def test_full_machine_is_refused() -> None:
    """With every block taken by a live node there is none to give."""
    claims = [Claim(FIRST_ID + n * IDS_PER_NODE, f"n{n}", f"/run/dsec/n{n}") for n in range(BLOCKS)]
    with pytest.raises(CapacityError):
        choose(claims, "more", "/run/dsec/more", lambda _: True)


def test_blocks_end_before_the_id_that_means_none() -> None:
    """No range holds 2**32 - 1, which the kernel refuses."""
    assert FIRST_ID + BLOCKS * IDS_PER_NODE <= 2**32 - 1


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=30))
def test_live_nodes_never_share_a_block(steps: list[tuple[str, bool]]) -> None:
    """Whatever comes up and dies in whatever order, live nodes have disjoint blocks."""
    claims: list[Claim] = []
    alive: set[str] = set()
    for name, comes_up in steps:
        if comes_up:
            _, claims = choose(claims, name, f"/run/dsec/{name}", lambda claim: claim.node in alive)
            alive.add(name)
        else:
            alive.discard(name)
        blocks = [claim.block for claim in claims if claim.node in alive]
        assert len(blocks) == len(set(blocks)) == len(alive)
