"""What the edge learns of layers that are read on demand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.unit.edge.shelf import Shelf

from dsec.backends.contract import Backend
from dsec.backends.wire import Loading
from dsec.edge.loading import LayerLoads
from dsec.errors import NodeError, ProtocolError

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parents[2] / "golden"


def _golden(name: str) -> bytes:
    vectors = {each["name"]: each["msgpack"] for each in json.loads((GOLDEN / name).read_text())}
    return bytes.fromhex(vectors["layer.loading"])


class Pages:
    """A runtime with so many layers, at most two of which it tells at once."""

    def __init__(self, count: int) -> None:
        self.asked: list[int] = []
        self._count = count

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """The page after a number."""
        assert method == "layer.loading"
        self.asked.append(params["after"])
        numbers = [number for number in range(3, 3 + self._count) if number > params["after"]]
        layers = [{"layer": number, "digest": "d", "bytes": 9, "filled_bytes": number} for number in numbers[:2]]
        return {"on_demand": True, "fetcher": True, "counts": {"hits": 4}, "layers": layers, "more": len(numbers) > 2}


def test_the_report_has_every_field() -> None:
    """The runtime's answer, field by field, and nothing that it does not say; and the question as it reads it."""
    raw = msgspec.msgpack.decode(_golden("runtime_answers.json"))
    assert msgspec.to_builtins(msgspec.convert(raw, Loading)) == raw
    assert msgspec.msgpack.decode(_golden("runtime_requests.json")) == {"after": 7}


@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_all_pages_are_asked_for(count: int) -> None:
    """However many layers there are, each is told once, with the totals."""
    pages = Pages(count)
    report = await LayerLoads(cast("Backend", pages)).report()
    assert [each.filled_bytes for each in report.layers] == list(range(3, 3 + count))
    assert (report.on_demand, report.fetcher, report.counts.hits, report.more) == (True, True, 4, False)
    assert len(pages.asked) == max(1, (count + 1) // 2)


async def test_what_is_no_report_is_refused() -> None:
    """An answer of another shape is the protocol's fault, not a zero."""

    class Wrong(Pages):
        async def call(self, method: str, params: dict[str, Any]) -> Any:
            return {"layers": []}

    with pytest.raises(ProtocolError):
        await LayerLoads(cast("Backend", Wrong(0))).report()


@pytest.mark.parametrize("shelf", ["filled"], indirect=True)
async def test_status_and_metrics_tell_of_it(shelf: Shelf) -> None:
    """The node's totals, where layers are read on demand; a silent holder is counted, and all else is told."""
    status = await shelf.api.call("GET", "/v1/status")
    assert (status["loading"]["misses"], status["loading"]["layers"]) == (0, 0)
    numbers = await (await shelf.api.session.get("http://edge/metrics")).text()
    assert 'dsec_layer_loading{what="waiting"} 0.0' in numbers
    failures = shelf.world.runtime.failures
    failures["layer.loading"] = NodeError("silent", phase="holder")
    assert (await shelf.api.call("GET", "/v1/status"))["loading"] == {}
    failures["layer.loading"] = NodeError("silent", phase="holder")
    numbers = await (await shelf.api.session.get("http://edge/metrics")).text()
    assert "dsec_layer_loading" not in numbers
    assert 'dsec_edge_events_total{kind="layers",what="holder silent"} 2.0' in numbers
