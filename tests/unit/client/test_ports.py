"""How a client reaches an exposed port."""

from __future__ import annotations

import pytest

from dsec.api.types import PortInfo
from dsec.client.ports import url_of

INFO = PortInfo(port=3000, host="3000-sb-x.localhost", token="t0ken", token_header="dsec-port-token")


@pytest.mark.parametrize(
    ("api", "url", "connect"),
    [
        ("http://127.0.0.1:7373", "http://3000-sb-x.localhost:7373", "127.0.0.1:7373"),
        ("http://[::1]:80/", "http://3000-sb-x.localhost:80", "[::1]:80"),
        ("https://dsec.example", "https://3000-sb-x.localhost", "dsec.example:443"),
    ],
)
def test_the_apis_address_is_the_ports(api: str, url: str, connect: str) -> None:
    """The origin names port and sandbox; the connection goes to wherever this client reaches the API."""
    made = url_of(INFO, api)
    assert (made.url, made.connect, str(made)) == (url, connect, url)
    assert made.headers == {"host": url.partition("//")[2], "dsec-port-token": "t0ken"}
    assert made.link == f"{url}/?dsec_port_token=t0ken"
