"""The edge's routes are those that the apiserver documents and lets through."""

from __future__ import annotations

import re

import pytest

from dsec.apiserver.routes import ROUTES
from dsec.testing.edge_world import World

pytestmark = pytest.mark.anyio


async def test_routes_are_the_documented_ones(world: World) -> None:
    """Each route that the document has is answered by the edge, and the edge has none that nobody can reach."""
    documented = {
        (route.method, re.sub(r"\{.+?\}", "{}", route.path))
        for route in ROUTES
        if (route.where == "edge" and not route.upgrades) or route.path == "/metrics"
    }
    async with world.edge() as (edge, _):
        served = {(route.method, re.sub(r"\{.+?\}", "{}", route.path)) for route in edge.routes}
    assert served == documented
