"""Whether a layer is needed, whatever sandboxes come, move and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.layer_users import LayerUsers

USERS, LAYERS = st.sampled_from("abc"), st.sampled_from("xyz")
STEPS = st.lists(st.tuples(USERS, st.none() | st.lists(LAYERS, max_size=4)), max_size=30)


@given(steps=STEPS)
def test_counted_as_looked_up(steps: list[tuple[str, list[str] | None]]) -> None:
    """After any holding (anew, with layers twice) and dropping it is what a look at every user would say."""
    users, model = LayerUsers(), dict[str, list[str]]()
    for user, layers in steps:
        if layers is None:
            assert set(users.drop(user)) == set(model.pop(user, []))
        else:
            users.hold(user, layers)
            model[user] = layers
        for layer in "xyz":
            expected = sorted(each for each, own in model.items() if layer in own)
            assert users.of(layer) == expected
            assert (layer in users) == bool(expected)
    assert len(users._counts) == len({layer for own in model.values() for layer in own})
