"""Where the apiserver is and with which token: arguments, environment, or the node of this machine.

The path of ``node.json`` is all that the SDK knows of a node's files (``dsec.node.paths`` has the rest).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsec.api.trust import client_context
from dsec.errors import Denied, InvalidArgument, NodeError

__all__ = ["Address", "find_address", "node_json"]


@dataclass(frozen=True)
class Address:
    """An apiserver's URL, without a slash at its end, and the token for it."""

    url: str
    token: str = field(repr=False)
    job: str | None = None
    """In whose name each request comes: a job's, and its holder's fencing number."""
    trust: str | None = None
    """Whom to believe at an https URL: see ``dsec.api.trust``."""

    def context(self) -> ssl.SSLContext | None:
        """How to meet the server; None without TLS. Raises InvalidArgument."""
        return client_context(self.trust) if self.url.startswith("https://") else None

    @property
    def headers(self) -> dict[str, str]:
        """What each request says of it."""
        return {} if self.job is None else {"dsec-job": self.job}


def node_json(environ: Mapping[str, str]) -> Path:
    """``node.json`` of the node that ``DSEC_NODE`` and ``DSEC_ROOT`` name; by default of node ``local``."""
    root = Path(environ.get("DSEC_ROOT") or "/")
    return root / "run" / "dsec" / (environ.get("DSEC_NODE") or "local") / "node.json"


def find_address(
    url: str | None, token: str | None, environ: Mapping[str, str] = os.environ, *, trust: str | None = None
) -> Address:
    """Resolve URL and token; raises NodeError when no node is up, Denied when there is no token that may be read."""
    url = url or environ.get("DSEC_URL") or None
    token = token or environ.get("DSEC_TOKEN") or None
    trust = trust or environ.get("DSEC_TRUST") or None
    local: dict[str, str] = {}
    if url is None or token is None:
        local = _read_node(node_json(environ), needed=url is None)
    if url is None:
        url = local["url"]
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"the URL must begin with http:// or https://, not {url!r}")
    url = url.rstrip("/")
    is_local = local.get("url", "").rstrip("/") == url
    if is_local:
        trust = trust or local.get("trust")
    if token is None and is_local:
        token = _read_token(Path(local["token_path"]))
    if token is None:
        raise Denied(f"no token for {url}", phase="token", remedy="Set DSEC_TOKEN, or pass token=")
    return Address(url, token, trust=trust)


def _read_node(path: Path, *, needed: bool) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        if not needed:
            return {}
        raise NodeError(
            f"no node is up here ({path} does not exist)",
            phase="discovery",
            remedy="Start one with `dsec up`, or set DSEC_URL and DSEC_TOKEN",
        ) from None
    except PermissionError:
        raise Denied(
            f"{path} may not be read by this user",
            phase="discovery",
            remedy="Run as root, or start the node with `dsec up --group GROUP`",
        ) from None
    except ValueError:
        raise NodeError(f"{path} is damaged", phase="discovery", remedy="`dsec up` repairs it") from None
    return found


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise Denied(f"the token file {path} is gone", phase="token", remedy="`dsec up` makes it anew") from None
    except PermissionError:
        raise Denied(
            f"the token file {path} may not be read by this user",
            phase="token",
            remedy="Run as root, or start the node with `dsec up --group GROUP`",
        ) from None
