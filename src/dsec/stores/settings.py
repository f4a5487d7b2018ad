"""Where a store is: its URL read, and the credentials that the environment and the usual AWS files hold."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from dsec.errors import InvalidArgument

__all__ = ["BucketAddress", "DirectoryAddress", "parse_address"]

_REMEDY = "Write it as file:///DIRECTORY or s3://BUCKET[/PREFIX]"


class DirectoryAddress(msgspec.Struct, frozen=True):
    """A directory that all nodes have mounted."""

    path: Path


class BucketAddress(msgspec.Struct, frozen=True):
    """A bucket and how to come to it; ``secrets`` never appear in a message."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    secrets: dict[str, str]

    @property
    def url(self) -> str:
        """As the settings have it."""
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def config(self) -> dict[str, Any]:
        """The S3 client's own words for this. Without secrets it asks the machine (instance role, web identity)."""
        own_endpoint = {} if self.endpoint is None else {"endpoint": self.endpoint}
        # Other people's S3 servers seldom have a name for each bucket.
        style = {"virtual_hosted_style_request": self.endpoint is None}
        return own_endpoint | style | {"region": self.region} | self.secrets


def parse_address(
    url: str, *, endpoint: str | None = None, region: str | None = None, environment: Mapping[str, str]
) -> DirectoryAddress | BucketAddress:
    """Read a store's URL; raises InvalidArgument.

    Credentials: ``AWS_ACCESS_KEY_ID`` and its kin, else the profile (``AWS_PROFILE``) of the shared credentials file.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument("a store's URL has no credentials and no query", remedy=_REMEDY, argument="url")
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        if endpoint or region:
            raise InvalidArgument("a directory has neither endpoint nor region", remedy=_REMEDY, argument="url")
        return DirectoryAddress(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise InvalidArgument(f"{endpoint!r} is not an endpoint", remedy="Write it as https://HOST[:PORT]")
        return BucketAddress(
            parts.netloc, parts.path.strip("/"), endpoint, _region(region, environment), _secrets(environment)
        )
    raise InvalidArgument(f"{url!r} is not a store", remedy=_REMEDY, argument="url")


def _region(own: str | None, environment: Mapping[str, str]) -> str:
    return own or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"


def _secrets(environment: Mapping[str, str]) -> dict[str, str]:
    names = ("access_key_id", "secret_access_key", "session_token")
    given = {name: environment[f"AWS_{name.upper()}"] for name in names if environment.get(f"AWS_{name.upper()}")}
    return given or _from_file(environment)


def _from_file(environment: Mapping[str, str]) -> dict[str, str]:
    home = Path(environment.get("HOME", "/root"))
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    profile = environment.get("AWS_PROFILE") or "default"
    reader = configparser.RawConfigParser()
    try:
        reader.read_string(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise InvalidArgument(f"{file} cannot be read: {type(error).__name__}", phase="store") from None
    if not reader.has_section(profile):
        return {}
    section = reader[profile]
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    return {ours: section[theirs] for ours, theirs in names.items() if section.get(theirs)}
