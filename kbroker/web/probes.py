"""Health probes: /livez for the event loop, /readyz and /healthz for readiness to serve clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kbroker.broker.local_node import LocalNode, NodeState
from kbroker.client.connection import Connection
from kbroker.node.node import Node
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

# How long results are cached, so that frequent probes cost little.
FRESH_SECONDS = 1
ROUND_TRIP_SECONDS = 5
NOT_READY = 503


class Check(NamedTuple):
    """A readiness condition; `reason` states why it is not met."""

    name: str
    reason: str | None = None


class Probes:
    """Probes of one node."""

    def __init__(self, local: LocalNode) -> None:
        self._local = local
        self._checks: list[Check] = []
        self._checked_at = float("-inf")
        # Run of the node that was checked.
        self._checked_node: Node | None = None
        self._lock = trio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/healthz", self._ready),
        ]

    async def _live(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _: Request) -> JSONResponse:
        checks = await self._current_checks()
        failed = [each for each in checks if each.reason is not None]
        body = {
            "status": "not ready" if failed else "ready",
            "node_id": self._local.id,
            "checks": {each.name: each.reason or "ok" for each in checks},
        }
        if failed:
            body["reason"] = f"{failed[0].name}: {failed[0].reason}"
        return JSONResponse(body, NOT_READY if failed else 200)

    async def _current_checks(self) -> list[Check]:
        """Return current checks. Only one request runs the checks; waiting requests get its result."""
        if not self._local.is_running:
            return [Check("node", _not_running_reason(self._local))]
        async with self._lock:
            node = self._local.node
            is_fresh = trio.current_time() - self._checked_at < FRESH_SECONDS
            if not is_fresh or node is not self._checked_node:
                self._checks = [each async for each in _checks(self._local)]
                self._checked_at, self._checked_node = trio.current_time(), node
        if not self._local.is_running or self._local.node is not self._checked_node:
            # The node stopped or restarted during the checks.
            return [Check("node", _not_running_reason(self._local))]
        return self._checks


async def _checks(local: LocalNode) -> AsyncIterator[Check]:
    yield Check("node")
    node = local.node
    yield Check(
        "cluster", None if node.membership.is_registered else "not registered in the cluster"
    )
    yield Check("listeners", None if local.server.is_accepting else "not accepting connections")
    problems = [each.failed or each.read_only_reason for each in node.partitions.logs.managers]
    yield Check("data", next(filter(None, problems), None))
    yield Check("round_trip", await _round_trip(local))


async def _round_trip(local: LocalNode) -> str | None:
    """Send a Metadata request to the node like a client; return the error, if any."""
    with trio.move_on_after(ROUND_TRIP_SECONDS):
        try:
            async with local.server.connect_in_process(local.endpoint) as stream:
                connection = Connection(stream)
                await connection.negotiate()
                request = messages.request_class(ApiKey.METADATA)(topics=[])
                await connection.request(ApiKey.METADATA, 9, request)
                return None
        except OSError as error:
            return str(error)
    return f"no response within {ROUND_TRIP_SECONDS} seconds"


def _not_running_reason(local: LocalNode) -> str:
    return {
        NodeState.STARTING: "starting: recovering logs and loading groups",
        NodeState.STOPPED: "stopping",
        NodeState.CRASHED: "crashed",
    }.get(local.state, "restarting")
