"""Server and SDK may differ by a release."""

from __future__ import annotations

import msgspec
import pytest

from dsec.api import audit, images, jobs, layers, network, packing, snapshots, tokens, types

TOPICS = (audit, images, jobs, layers, network, packing, snapshots, tokens, types)
KINDS = {each for topic in TOPICS for each in vars(topic).values() if isinstance(each, msgspec.StructMeta)}
PARTS = {types.Endpoint, network.Network, network.NetworkRule, packing.Residue, types.Pty}
"""What requests are made of."""
ASKED = sorted({each for each in KINDS if each.__name__.endswith(("Request", "Filter"))} | PARTS, key=str)
TOLD = sorted(KINDS.difference(ASKED), key=str)


@pytest.mark.parametrize("kind", ASKED)
def test_requests_refuse_what_they_do_not_know(kind: type[msgspec.Struct]) -> None:
    """A field of a later release is named, and never silently left out of what was asked."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `of_a_later_release`"):
        msgspec.json.decode(b'{"of_a_later_release": 1}', type=kind)


@pytest.mark.parametrize("kind", TOLD)
def test_answers_may_say_more(kind: type[msgspec.Struct]) -> None:
    """What a later server adds to an answer is no error to this client."""
    assert not kind.__struct_config__.forbid_unknown_fields
