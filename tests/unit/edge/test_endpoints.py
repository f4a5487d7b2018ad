"""What may stand in ``endpoints``, and what becomes of it."""

from __future__ import annotations

import pytest

from dsec.api.types import Endpoint
from dsec.backends.wire import EndpointCount, EndpointSpec
from dsec.edge.endpoints import endpoint_infos, endpoint_specs
from dsec.errors import InvalidArgument


def _only(url: str | Endpoint) -> EndpointSpec:
    (spec,) = endpoint_specs({"llm": url})
    return spec


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://127.0.0.1:8000/v1", (False, "127.0.0.1", 8000, "/v1")),
        ("https://models.example/", (True, "models.example", 443, "")),
        ("http://[::1]:9/a/b/", (False, "::1", 9, "/a/b")),
        ("http://Host_1", (False, "host_1", 80, "")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: tuple[bool, str, int, str]) -> None:
    """Scheme, host, port and path, without a slash at its end; and they make the URL again."""
    spec = _only(url)
    assert (spec.tls, spec.host, spec.port, spec.path) == parts
    (info,) = endpoint_infos([spec], [])
    assert _only(info.url) == spec


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8000", "ftp://s3cret", "http://", "http://:80/s3cret", "http://user:s3cret@host/", "http://s3cret@host",
        "http://host/?key=s3cret", "http://host/#s3cret", "http://host/?", "http://host:0/s3cret", "http://host:99999/s3cret",
        "http://host:x/s3cret", "http://ho st/s3cret", "http://host/s3cret\r\nHost: x", "http://host/../s3cret",
        "http://host/s3cret/./b", "http://host//s3cret", "http://host\\s3cret/", "http://[::1/s3cret", "http://[fe80::1%25s3cret]/",
        "http://höst/s3cret", "http://host/" + "s3cret" * 1000,
    ],
)  # fmt: skip
def test_what_is_no_plain_url_is_refused_unrepeated(url: str) -> None:
    """Anything odd is refused by name, and no error repeats what stood there."""
    with pytest.raises(InvalidArgument) as caught:
        _only(url)
    assert "llm" in str(caught.value)
    assert "s3cret" not in str(caught.value.to_wire()) and "s3cret" not in repr(caught.value.__cause__)


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "a_b", "a" * 33, "a\n127.0.0.1 x"])
def test_a_name_is_a_label(name: str) -> None:
    """It becomes a host name and a line of /etc/hosts, so it is a plain label."""
    with pytest.raises(InvalidArgument):
        endpoint_specs({name: "http://127.0.0.1"})


@pytest.mark.parametrize(
    "limits", [{"max_connections": 0}, {"max_connections": 5000}, {"max_bytes": 0}, {"max_requests_per_minute": -1}]
)
def test_limits_are_positive(limits: dict[str, int]) -> None:
    """A limit that would mean nothing is refused."""
    with pytest.raises(InvalidArgument):
        _only(Endpoint("http://127.0.0.1", **limits))


def test_there_are_at_most_sixteen() -> None:
    """More than a packet's descriptors are refused before anything is made."""
    assert len(endpoint_specs({f"e{number}": "http://h" for number in range(16)})) == 16
    with pytest.raises(InvalidArgument):
        endpoint_specs({f"e{number}": "http://h" for number in range(17)})


def test_counts_follow_their_endpoints() -> None:
    """Counts come in the order of the endpoints; one without a count yet has done nothing."""
    specs = endpoint_specs({"a": "http://h", "b": Endpoint("https://h:8443/x", max_bytes=7)})
    first, second = endpoint_infos(specs, [EndpointCount(requests=2, received_bytes=5)])
    assert (first.name, first.requests, first.received_bytes, first.address) == ("a", 2, 5, "http://a.dsec.internal")
    assert (second.url, second.max_bytes, second.requests) == ("https://h:8443/x", 7, 0)
