"""Server and SDK may differ by a release."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from dsec.api import types

KINDS = [kind for _, kind in inspect.getmembers(types, inspect.isclass) if issubclass(kind, msgspec.Struct)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, types._Request)])
def test_requests_refuse_what_they_do_not_know(kind: type[msgspec.Struct]) -> None:
    """A field of a later release is named, and never silently left out of what was asked."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `of_a_later_release`"):
        msgspec.json.decode(b'{"of_a_later_release": 1}', type=kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, types._Answer)])
def test_answers_may_say_more(kind: type[msgspec.Struct]) -> None:
    """What a later server adds to an answer is no error to this client."""
    assert not kind.__struct_config__.forbid_unknown_fields
