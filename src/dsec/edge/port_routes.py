"""Routes of exposed ports, endpoints and networks, and of what was refused."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.types import NetworkRequest, PortRequest
from dsec.edge.audit import Audit
from dsec.edge.core import Core
from dsec.edge.ports import Ports
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer, query_of
from dsec.errors import InvalidArgument

__all__ = ["port_routes"]


class _Answers:
    def __init__(self, core: Core, ports: Ports) -> None:
        self._core = core
        self._ports = ports
        self._audit = Audit(core)

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

    async def set_network(self, request: Request) -> Response:
        asked = await body_as(request, NetworkRequest)
        record = self._core.running(request.path_params["id"])
        await self._ports.set_network(record, asked.network)
        return json_answer(await self._ports.network(record))

    async def network(self, request: Request) -> Response:
        return json_answer(await self._ports.network(self._core.find(request.path_params["id"])))

    async def events(self, request: Request) -> Response:
        start = query_of(request, "start").get("start", [""])[-1]
        record = self._core.find(request.path_params["id"])
        return json_answer(await self._audit.events(record, start))


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
        Route("PUT", one + "/network", answered(own.set_network)),
        Route("GET", one + "/network", answered(own.network)),
        Route("GET", one + "/events", answered(own.events)),
    ]
