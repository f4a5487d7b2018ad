"""A runtime in memory that speaks ``runtime.sock``, and can be held at any call, cut off, restarted and robbed.

Its state outlives its connections, as the real one's does; ``lose_all`` is the keeper's death.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from dsec.errors import Conflict, DSecError, Fenced, Unsupported
from dsec.testing.fake_connection import FakeConnection
from dsec.testing.fake_programs import FakeExec
from dsec.testing.fake_sandboxes import FakeSandbox, FakeSandboxes
from dsec.testing.fake_sessions import FakeSession

__all__ = ["FakeRuntime", "Gate"]


class Gate:
    """Holds one call of a method: ``reached`` is set when it gets there, ``open`` lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    def open(self) -> None:
        """Let the call go on."""
        self._open.set()

    async def wait(self) -> None:
        """Be held."""
        self.reached.set()
        await self._open.wait()


class FakeRuntime(FakeSandboxes):
    """The server. ``calls`` lists (method, params) in the order of their arrival."""

    def __init__(self, socket: Path, *, boot_id: str = "boot-1") -> None:
        super().__init__()
        self.socket = socket
        self.boot_id = boot_id
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.removed_output: list[str] = []
        self.features: list[dict[str, Any]] = []
        self.failures: dict[str, DSecError] = {}
        """Method → the error of its next call."""
        self.stats: dict[str, int] = {"pool_bytes": 64 << 30, "descriptors_limit": 20_000}
        self._gates: dict[tuple[str, str], list[Gate]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[FakeConnection] = set()

    async def __aenter__(self) -> FakeRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen."""
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.socket))

    async def stop(self) -> None:
        """Stop listening and hang up; the state stays."""
        if self._server is not None:
            self._server.close()
        await self.drop_connections()
        self.socket.unlink(missing_ok=True)

    async def drop_connections(self) -> None:
        """Hang up on everybody."""
        for connection in list(self._connections):
            await connection.close()

    def hold(self, method: str, when: str = "before") -> Gate:
        """Hold the next call of a method ``before`` it acts, or ``after`` (it has acted and not yet answered)."""
        gate = Gate()
        self._gates.setdefault((method, when), []).append(gate)
        return gate

    async def pass_gate(self, method: str, when: str) -> None:
        """Wait at the gate, if there is one."""
        gates = self._gates.get((method, when))
        if gates:
            await gates.pop(0).wait()

    def called(self, method: str) -> list[dict[str, Any]]:
        """Parameters of all calls of a method."""
        return [params for name, params in self.calls if name == method]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(self, reader, writer)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    # Unary methods

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a unary method; raises its error."""
        failure = self.failures.pop(method, None)
        if failure is not None:
            raise failure
        answer = getattr(self, "_" + method.replace(".", "_"), None)
        if answer is None:
            raise Unsupported(f"no method {method}")
        return answer(params)

    def _hello(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"version": params["version"], "boot_id": self.boot_id, "node": "test", "capabilities": {}}

    def _probe(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"features": self.features}

    def _stats(self, _: dict[str, Any]) -> dict[str, Any]:
        return self.stats | {"sandboxes": len(self.sandboxes)}

    def _sandbox_create(self, params: dict[str, Any]) -> dict[str, Any]:
        sandbox_id = params["sandbox_id"]
        if params.get("job") is not None and params["job"] not in self.leases:
            raise Conflict("the job has no lease")
        known = self.sandboxes.get(sandbox_id)
        existing = known is not None
        if known is None:
            sandbox = FakeSandbox(params)
            main = params["main"]
            if main is not None:
                sandbox.execs[main["exec_id"]] = FakeExec(main)
            self.sandboxes[sandbox_id] = known = sandbox
            for each in sandbox.execs.values():
                each.run()
                if each.end is not None:
                    self.exec_ended(sandbox_id, each)
        return {
            "sandbox_id": sandbox_id, "started_at": known.started_at, "slot": len(self.sandboxes),
            "existing": existing, "phases": {"clone": 900, "overlay": 300},
        }  # fmt: skip

    def _sandbox_stop(self, params: dict[str, Any]) -> dict[str, Any]:
        sandbox = self.find(params["sandbox_id"])
        keep_ms = params.get("keep_ms")
        if keep_ms is not None and sandbox.end is None:
            until = time.time() + keep_ms / 1000
            kept = {"sandbox_id": params["sandbox_id"], "kept_until": until, "bytes": 4096}
            self.disks[params["sandbox_id"]] = kept
        return self.end_sandbox(params["sandbox_id"], params["cause"])

    def _sandbox_forget(self, params: dict[str, Any]) -> dict[str, Any]:
        for each in params["sandbox_ids"]:
            if each in self.sandboxes and self.sandboxes[each].end is None:
                raise Conflict("the sandbox lives", sandbox_id=each)
        for each in params["sandbox_ids"]:
            if each in self.sandboxes:
                self.forgotten[each] = self.sandboxes.pop(each)
        return {}

    def _sandbox_list(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "sandboxes": [
                {
                    "sandbox_id": sandbox_id,
                    "state": "running" if each.end is None else "ended",
                    "started_at": each.started_at,
                    "last_activity_at": each.started_at,
                    "execs_running": sum(not found.is_over for found in each.execs.values()),
                    "paused": each.paused,
                    "end": each.end,
                }
                for sandbox_id, each in self.sandboxes.items()
            ]
        }

    def _sandbox_freeze(self, params: dict[str, Any]) -> dict[str, Any]:
        self.freeze(params["sandbox_id"], params["cause"])
        return {"paused": True, "whole": True, "waited_ns": 1000}

    def _sandbox_thaw(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"resumed": self.resume(params["sandbox_id"], "resumed")}

    def _job_lease(self, params: dict[str, Any]) -> dict[str, Any]:
        known = self.leases.get(params["job"])
        if known is not None and known["fence"] > params["fence"]:
            raise Fenced("the job has a newer holder")
        self.leases[params["job"]] = params
        return {}

    def _job_end(self, params: dict[str, Any]) -> dict[str, Any]:
        if any(each.spec.get("job") == params["job"] and each.end is None for each in self.sandboxes.values()):
            raise Conflict("a sandbox belongs to the job")
        self.leases.pop(params["job"], None)
        return {}

    def _disk_list(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"disks": list(self.disks.values())}

    def _disk_remove(self, params: dict[str, Any]) -> dict[str, Any]:
        for each in params["sandbox_ids"]:
            if self.disks.pop(each, None) is not None:
                self.tell({"type": "disk.removed", "sandbox_id": each})
        return {}

    def _snapshot_make(self, params: dict[str, Any]) -> dict[str, Any]:
        snapshot_id, now = params["snapshot_id"], time.time()
        if snapshot_id not in self.snapshots:
            self.live(params["sandbox_id"])
            self.snapshots[snapshot_id] = {
                "snapshot_id": snapshot_id, "sandbox_id": params["sandbox_id"], "made_at": now,
                "kept_until": now + params["keep_ms"] / 1000, "bytes": 4096, "frozen_ns": 1000, "whole": True,
            }  # fmt: skip
        return self.snapshots[snapshot_id]

    def _snapshot_list(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"snapshots": list(self.snapshots.values())}

    def _snapshot_remove(self, params: dict[str, Any]) -> dict[str, Any]:
        for each in params["snapshot_ids"]:
            if self.snapshots.pop(each, None) is not None:
                self.tell({"type": "snapshot.removed", "snapshot_id": each})
        return {}

    def _sandbox_usage(self, params: dict[str, Any]) -> dict[str, Any]:
        self.live(params["sandbox_id"])
        return self.use()

    def _net_set(self, params: dict[str, Any]) -> dict[str, Any]:
        self.live(params["sandbox_id"]).net = params
        return {}

    def _net_prepare(self, params: dict[str, Any]) -> dict[str, Any]:
        self.live(params["sandbox_id"])
        return {}

    def _audit_events(self, params: dict[str, Any]) -> dict[str, Any]:
        told = self.find(params["sandbox_id"]).audit
        return {"events": len(told), "latest": [each for each in told if each["number"] >= params["from"]]}

    def _net_told(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _net_usage(self, params: dict[str, Any]) -> dict[str, Any]:
        self.find(params["sandbox_id"])
        return {"inbound": 0, "endpoints": [{"requests": 3, "sent_bytes": 10}]}

    def _exec_kill(self, params: dict[str, Any]) -> dict[str, Any]:
        sandbox = self.live(params["sandbox_id"])
        found = sandbox.execs.get(params["exec_id"])
        if found is None:
            self.killed_before.add(params["exec_id"])
        elif not found.is_over:
            if params["signal"] is None:
                found.finish(None, ended="cancelled", signal=15)
            else:
                found.finish(None, ended="signalled", signal=params["signal"])
            self.exec_ended(params["sandbox_id"], found)
        return {}

    def _exec_ack(self, params: dict[str, Any]) -> dict[str, Any]:
        for sandbox in self.sandboxes.values():
            for each in params["exec_ids"]:
                if each in sandbox.execs:
                    sandbox.execs[each].acked = True
        return {}

    def _exec_list(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"execs": [each.state() for each in self.find(params["sandbox_id"]).execs.values()]}

    def _output_remove(self, params: dict[str, Any]) -> dict[str, Any]:
        self.removed_output += params["sandbox_ids"]
        for each in params["sandbox_ids"]:
            self.forgotten.pop(each, None)
        return {}

    def _layer_evict(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"evicted": params["digests"]}

    @staticmethod
    def _layer_loading(_: dict[str, Any]) -> dict[str, Any]:
        return {"on_demand": False}

    @staticmethod
    def _tool_list(_: dict[str, Any]) -> dict[str, Any]:
        return {"tools": []}

    def _session_open(self, params: dict[str, Any]) -> dict[str, Any]:
        sandbox = self.live(params["sandbox_id"])
        shell = self.begin(params | {"argv": [b"sleep"], "programs": None})
        sandbox.sessions.setdefault(shell.exec_id, FakeSession(shell))
        return {"started_at": shell.started_at}

    def _session_cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self.session(params["sandbox_id"], params["session_id"]).cancel(params["run_id"])
        return {}

    def _session_close(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.session(params["sandbox_id"], params["session_id"])
        if not session.shell.is_over:
            session.shell.finish(0)
            self.exec_ended(params["sandbox_id"], session.shell)
        return {}

    def _session_runs(self, params: dict[str, Any]) -> dict[str, Any]:
        sessions = self.find(params["sandbox_id"]).sessions.values()
        return {"runs": [end for each in sessions for end in each.ends.values()]}
