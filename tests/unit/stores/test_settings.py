"""A store's URL and where its credentials come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import InvalidArgument
from dsec.stores.settings import BucketAddress, DirectoryAddress, parse_address


def test_directory() -> None:
    """file:/// names a directory, escapes undone."""
    assert parse_address("file:///mnt/dfs/a%20b", environment={}) == DirectoryAddress(Path("/mnt/dfs/a b"))


def test_bucket_takes_what_the_environment_gives(tmp_path: Path) -> None:
    """Keys and region of the environment; the settings' own region wins."""
    environment = {
        "HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu-west-1",
    }  # fmt: skip
    keys = {"access_key_id": "id", "secret_access_key": "key"}
    assert parse_address("s3://b/p/q/", environment=environment) == BucketAddress("b", "p/q", None, "eu-west-1", keys)
    own = parse_address("s3://b", endpoint="http://h:1", region="x", environment=environment)
    assert own == BucketAddress("b", "", "http://h:1", "x", keys)
    assert (own.url, own.config()["virtual_hosted_style_request"]) == ("s3://b", False)


def test_credentials_file(tmp_path: Path) -> None:
    """The profile's section of the shared credentials file, where the environment has no keys."""
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b%\n[lab]\naws_access_key_id=c\n")
    for profile, keys in (
        ({}, {"access_key_id": "a", "secret_access_key": "b%"}),
        ({"AWS_PROFILE": "lab"}, {"access_key_id": "c"}),
        ({"AWS_PROFILE": "none"}, {}),
    ):
        address = parse_address("s3://b", environment={"HOME": str(tmp_path)} | profile)
        assert isinstance(address, BucketAddress)
        assert address.secrets == keys


def test_damaged_credentials_file_is_refused_without_its_content(tmp_path: Path) -> None:
    """The error names the file, never a line of it."""
    file = tmp_path / "keys"
    file.write_text("aws_secret_access_key = hidden\n")
    with pytest.raises(InvalidArgument) as caught:
        parse_address("s3://b", environment={"AWS_SHARED_CREDENTIALS_FILE": str(file)})
    assert "keys" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "/mnt/x", "file://host/x", "file:x", "s3://", "http://x/y", "s3://key:secret@b", "s3://b?x=1", "s3://b#f"],
)
def test_other_urls_are_refused(url: str) -> None:
    """InvalidArgument that says how one is written."""
    with pytest.raises(InvalidArgument) as caught:
        parse_address(url, environment={})
    assert "s3://BUCKET" in (caught.value.remedy or "")


def test_endpoint_is_a_url_and_only_of_buckets() -> None:
    """A bare host is refused, and so is an endpoint of a directory."""
    with pytest.raises(InvalidArgument):
        parse_address("s3://b", endpoint="host:9000", environment={})
    with pytest.raises(InvalidArgument):
        parse_address("file:///x", endpoint="http://h", environment={})
