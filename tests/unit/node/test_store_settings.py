"""The stores of a node's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import InvalidArgument
from dsec.node.config import NodeConfig, StoreSettings, default_store, read_settings
from dsec.node.paths import NodePaths


def _read(tmp_path: Path, text: str) -> NodeConfig:
    paths = NodePaths("test", tmp_path)
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text(text)
    return read_settings(paths)


def test_stores_are_read(tmp_path: Path) -> None:
    """By name, each with its URL and what S3 needs."""
    config = _read(
        tmp_path,
        '[stores.lab]\nurl = "file:///mnt/dfs"\n'
        '[stores.cloud]\nurl = "s3://b/p"\nendpoint = "http://h:1"\nregion = "r"\ndefault = true\n',
    )
    assert config.stores == {
        "lab": StoreSettings(url="file:///mnt/dfs"),
        "cloud": StoreSettings(url="s3://b/p", endpoint="http://h:1", region="r", default=True),
    }
    assert default_store(config.stores) == "cloud"


def test_which_store_is_meant() -> None:
    """A lone one; of several the one that says so, or none."""
    lone = {"a": StoreSettings(url="file:///a")}
    assert default_store({}) is None
    assert default_store(lone) == "a"
    assert default_store(lone | {"b": StoreSettings(url="file:///b")}) is None


@pytest.mark.parametrize(
    "text",
    [
        '[stores.x]\nurl = "http://h"',
        '[stores.x]\nurl = "file://relative"',
        '[stores."../x"]\nurl = "file:///x"',
        '[stores.X]\nurl = "file:///x"',
        '[stores.x]\nurl = "s3://b"\nsecret = "never here"',
        '[stores.x]\nurl = "s3://b"\ndefault = true\n[stores.y]\nurl = "s3://c"\ndefault = true',
        'reading = "filled"',
        "id_block = 65536",
    ],
)
def test_wrong_settings_name_the_file(tmp_path: Path, text: str) -> None:
    """InvalidArgument with the settings' path, for URLs, names, unknown and chosen fields, two defaults."""
    with pytest.raises(InvalidArgument, match=r"test\.toml"):
        _read(tmp_path, text)
