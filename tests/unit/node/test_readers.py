"""How layers are read: chosen by a trial, or as the settings say, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsec.errors import InvalidArgument, Unsupported
from dsec.node.binaries import Binaries
from dsec.node.config import NodeConfig, StoreSettings
from dsec.node.readers import Reading, Trial, choose, tried

STORES = {"s": StoreSettings(url="file:///mnt/dfs")}
ROLE = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
CLOUD = {"s": StoreSettings(url="s3://bucket/p", region="eu")}


def chosen(*, present: bool = True, env: dict[str, str] | None = None, **settings: Any) -> Reading:
    """With a trial that ends so."""
    return choose(NodeConfig(**settings), env or {}, lambda: Trial(present, "seen"))


def test_auto_follows_the_trial() -> None:
    """Filled where it works; whole where it does not, where there is no store, and where the fetcher has no keys."""
    assert chosen(stores=STORES) == Reading(reader="filled", why="seen")
    assert chosen(stores=STORES, present=False) == Reading(reader="whole", why="seen")
    assert chosen() == Reading(reader="whole", why="there is no store to read from")
    assert chosen(stores=CLOUD, env=ROLE).reader == "whole"


def test_what_is_asked_for_is_had_or_refused() -> None:
    """A forced reader is never replaced in silence; each refusal has its remedy."""
    assert chosen(stores=STORES, reader="whole") == Reading(reader="whole", why="as the settings say")
    assert chosen(stores=STORES, reader="filled").reader == "filled"
    for wrong in ({"present": False, "reader": "filled"}, {"reader": "mounted"}):
        with pytest.raises(Unsupported) as caught:
            chosen(stores=STORES, **wrong)
        assert str(wrong["reader"]) in caught.value.message
        assert caught.value.remedy
    with pytest.raises(InvalidArgument):
        chosen(stores=CLOUD, env=ROLE, reader="filled")


def test_a_probe_that_cannot_run_is_no_kernel_that_can(tmp_path: Path) -> None:
    """A program that is not there, dies, or says something else counts as no."""
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho '{\"features\": []}'\n", None):
        program = tmp_path / "runtime"
        if text is None:
            program.unlink()
        else:
            program.write_text(text)
            program.chmod(0o755)
        binaries = Binaries(*(program for _ in range(6)))
        assert not tried(binaries, tmp_path / "not" / "there").present
