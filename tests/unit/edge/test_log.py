"""The edge's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from dsec.edge.log import configure_log


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_line_is_json(tmp_path: Path) -> None:
    """What is told is one JSON object a line, errors with their traces."""
    with (tmp_path / "log").open("w") as file:
        configure_log(file)
        structlog.get_logger().warning("odd", number=3)
        try:
            raise ValueError("wrong")
        except ValueError:
            structlog.get_logger().exception("failed")
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["event"], first["level"], first["number"]) == ("odd", "warning", 3)
    assert "ValueError: wrong" in second["exception"]


def test_a_full_disk_costs_the_line_alone() -> None:
    """Nobody fails who only tells something: a file that takes no byte fails its writer, and not the log's."""
    with pytest.raises(OSError, match="space"), open("/dev/full", "w") as file:  # noqa: PTH123
        print("x", file=file, flush=True)
    file = open("/dev/full", "w")  # noqa: PTH123, SIM115
    configure_log(file)
    structlog.get_logger().error("lost")
    with pytest.raises(OSError, match="space"):
        file.close()
