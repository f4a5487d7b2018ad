"""Exposed ports and endpoints: recorded first, then told to the runtime, again after each of its deaths."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
import structlog

from dsec.api.network import Network, NetworkInfo
from dsec.api.types import EndpointInfo, PortInfo
from dsec.backends.wire import EgressCount, NetUsage, answer
from dsec.edge.core import Core
from dsec.edge.demands import egress_of
from dsec.edge.endpoints import endpoint_infos
from dsec.edge.faults import fault
from dsec.edge.record import SandboxRecord
from dsec.errors import DSecError, InvalidArgument, NodeError, NotFound, SandboxGone

__all__ = ["TOKEN_HEADER", "Ports"]

TOKEN_HEADER = "dsec-port-token"  # noqa: S105  (its name)
_MOST_PORTS = 64
_log = structlog.get_logger("dsec.edge")


class Ports:
    """What of the node's sandboxes can be reached, and what they reach. Every call may be repeated."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._untold: set[str] = set()
        """Sandboxes of which the runtime could not be told, by ID."""

    async def expose(self, record: SandboxRecord, port: int) -> PortInfo:
        """Expose a port; one that is exposed keeps its token. Raises InvalidArgument, SandboxGone, NodeError."""
        if not 1 <= port <= 65535:
            raise InvalidArgument(f"there is no port {port}", sandbox_id=record.id, remedy="Use 1 to 65535")
        if port not in record.ports:
            if len(record.ports) >= _MOST_PORTS:
                raise InvalidArgument(f"a sandbox exposes at most {_MOST_PORTS} ports", sandbox_id=record.id)
            record.ports[port] = secrets.token_urlsafe(24)
            self._core.records.save(record)
        fault("edge.expose.committed")
        await self._tell(record)
        fault("edge.expose.told")
        return self._info(record, port, record.ports.get(port, ""))

    async def unexpose(self, record: SandboxRecord, port: int) -> None:
        """Expose a port no more; its connections are cut when this returns."""
        if record.ports.pop(port, None) is not None:
            self._core.records.save(record)
        await self._tell(record)

    def exposed(self, record: SandboxRecord) -> list[PortInfo]:
        """The exposed ports, by number; none of a sandbox that has ended."""
        if not record.is_live:
            return []
        return [self._info(record, port, token) for port, token in sorted(record.ports.items())]

    def _info(self, record: SandboxRecord, port: int, token: str) -> PortInfo:
        if not token:
            raise NodeError("the port was taken back meanwhile", sandbox_id=record.id, retry_after_s=0.1)
        host = f"{port}-{record.id}.{self._core.config.ports_domain}"
        return PortInfo(port=port, host=host, token=token, token_header=TOKEN_HEADER)

    async def endpoints(self, record: SandboxRecord) -> list[EndpointInfo]:
        """The endpoints and what they have done; of a sandbox that has ended, what they had. Raises NodeError."""
        if not record.endpoints or record.started_at is None or not record.is_live:
            return endpoint_infos(record.endpoints, record.endpoint_counts)
        found = await self._core.backend.call("net.usage", {"sandbox_id": record.id})
        return endpoint_infos(record.endpoints, answer(found, NetUsage).endpoints)

    async def close_endpoint(self, record: SandboxRecord, name: str) -> None:
        """Let an endpoint answer no more; its connections are cut when this returns. Raises NotFound."""
        if all(each.name != name for each in record.endpoints):
            raise NotFound(f"the sandbox has no endpoint {name[:40]!r}", sandbox_id=record.id)
        record.endpoints = [
            msgspec.structs.replace(each, closed=True) if each.name == name else each for each in record.endpoints
        ]
        self._core.records.save(record)
        await self._tell(record)

    async def set_network(self, record: SandboxRecord, asked: object) -> None:
        """Put a policy in place of the present one; connections that do not fit it are cut when this returns.

        Raises InvalidArgument, NotFound, Unsupported, SandboxGone, CapacityError, NodeError, and Conflict when a
        program of a sandbox without a network holds the port that one needs; none of these has changed anything but
        NodeError, after which it may be repeated.
        """
        network, egress = egress_of(asked, self._core.config)
        if egress is not None and record.egress is None:
            # What could be refused is done before anything is recorded; it lets nothing pass yet.
            await self._core.backend.call("net.prepare", {"sandbox_id": record.id})
            fault("edge.network.prepared")
        if network is None and record.egress is not None:
            # A namespace that has had a network keeps its sockets: from now on nothing passes them.
            network, egress = egress_of(Network(), self._core.config)
        former = record.network, record.egress
        if egress != record.egress:
            record.network, record.egress = network, egress
            self._core.records.save(record)
        try:
            await self._tell(record)
        except NodeError:
            raise
        except DSecError:
            if record.egress is egress:
                record.network, record.egress = former
                self._core.records.save(record)
            raise

    async def network(self, record: SandboxRecord) -> NetworkInfo:
        """The policy, and what was counted. Raises NodeError."""
        count = record.egress_record.count if record.egress_record is not None else EgressCount()
        if record.egress is not None and record.started_at is not None and record.is_live:
            found = await self._core.backend.call("net.usage", {"sandbox_id": record.id})
            count = answer(found, NetUsage).egress or count
        return NetworkInfo(network=record.network, **msgspec.structs.asdict(count))

    async def tell_all(self) -> None:
        """The runtime may have begun anew and know nothing of it, and so may the proxy, which lets requests wait
        until this is through. What is refused for one sandbox is told again by ``tell_rest``. Raises NodeError when
        the runtime is gone again.
        """
        self._untold = {each.id for each in self._core.live.values() if _has_any(each)}
        await self.tell_rest()
        await self._core.backend.call("net.told", {})

    async def tell_rest(self) -> None:
        """Tell what could not be told before. Raises NodeError when the runtime is gone."""
        for sandbox_id in sorted(self._untold):
            record = self._core.live.get(sandbox_id)
            try:
                if record is not None and _has_any(record):
                    await self._tell(record)
            except (NotFound, SandboxGone):
                pass  # its end is on its way
            except DSecError as error:
                if not self._core.link.connected:
                    raise
                # One sandbox, whose programs may be to blame, keeps no other from what it has.
                self._core.counters["refused", "net.set"] += 1
                _log.warning("a sandbox could not be told of its network", sandbox_id=sandbox_id, error=error.message)
                continue
            self._untold.discard(sandbox_id)

    async def _tell(self, record: SandboxRecord) -> None:
        """Everything as it is now; once more where it changed meanwhile, since answers may cross."""
        said: dict[str, Any] | None = None
        while record.is_live and said != (now := _net(record)):
            said = now
            await self._core.backend.call("net.set", said)


def _has_any(record: SandboxRecord) -> bool:
    return record.started_at is not None and bool(record.ports or record.endpoints or record.egress)


def _net(record: SandboxRecord) -> dict[str, Any]:
    return {
        "sandbox_id": record.id,
        "ports": [{"port": port, "token": token} for port, token in sorted(record.ports.items())],
        "endpoints": [msgspec.structs.asdict(each) for each in record.endpoints],
        "egress": record.egress,
    }
