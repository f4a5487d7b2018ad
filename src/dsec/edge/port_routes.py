"""Routes of exposed ports and endpoints."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.types import PortRequest
from dsec.edge.core import Core
from dsec.edge.ports import Ports
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer
from dsec.errors import InvalidArgument

__all__ = ["port_routes"]


class _Answers:
    def __init__(self, core: Core, ports: Ports) -> None:
        self._core = core
        self._ports = ports

    async def expose(self, request: Request) -> Response:
        asked = await body_as(request, PortRequest)
        record = self._core.running(request.path_params["id"])
        return json_answer(await self._ports.expose(record, asked.port))

    async def list(self, request: Request) -> Response:
        return json_answer({"ports": self._ports.exposed(self._core.find(request.path_params["id"]))})

    async def unexpose(self, request: Request) -> Response:
        try:
            port = int(request.path_params["port"])
        except ValueError:
            raise InvalidArgument(f"not a port: {request.path_params['port'][:40]!r}") from None
        await self._ports.unexpose(self._core.running(request.path_params["id"]), port)
        return json_answer({})

    async def endpoints(self, request: Request) -> Response:
        record = self._core.find(request.path_params["id"])
        return json_answer({"endpoints": await self._ports.endpoints(record)})

    async def close(self, request: Request) -> Response:
        record = self._core.running(request.path_params["id"])
        await self._ports.close_endpoint(record, request.path_params["name"])
        return json_answer({})


def port_routes(core: Core, ports: Ports) -> list[Route]:
    """All of them."""
    own = _Answers(core, ports)
    one = "/v1/sandboxes/{id}"
    return [
        Route("POST", one + "/ports", answered(own.expose)),
        Route("GET", one + "/ports", answered(own.list)),
        Route("DELETE", one + "/ports/{port}", answered(own.unexpose)),
        Route("GET", one + "/endpoints", answered(own.endpoints)),
        Route("POST", one + "/endpoints/{name}/close", answered(own.close)),
    ]
