"""/livez, /readyz and /healthz: whether the event loop answers, and whether clients are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kbroker.broker.local_node import LocalNode, NodeState
from kbroker.client.connection import Connection
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

FRESH_SECONDS = 1
"""Who asks more often is told the same: a node has other things to do."""
ROUND_TRIP_SECONDS = 5
NOT_READY = 503


class Check(NamedTuple):
    """One thing that a node has to have to be ready; `reason` says why it has not."""

    name: str
    reason: str | None = None


class Probes:
    """What is said of one node."""

    def __init__(self, local: LocalNode) -> None:
        self._local = local
        self._checks: list[Check] = []
        self._looked_at = float("-inf")
        self._looking = trio.Lock()

    def routes(self) -> list[Route]:
        """Where it is said."""
        return [
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/healthz", self._ready),
        ]

    async def _live(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _: Request) -> JSONResponse:
        checks = await self._look()
        failed = [each for each in checks if each.reason is not None]
        said = {
            "status": "not ready" if failed else "ready",
            "node_id": self._local.id,
            "checks": {each.name: each.reason or "ok" for each in checks},
        }
        if failed:
            said["reason"] = f"{failed[0].name}: {failed[0].reason}"
        return JSONResponse(said, NOT_READY if failed else 200)

    async def _look(self) -> list[Check]:
        """Only one looks at a time; who waited meanwhile hears what was found."""
        if not self._local.is_running:
            return [Check("node", _why_not_running(self._local))]
        async with self._looking:
            if trio.current_time() - self._looked_at >= FRESH_SECONDS:
                self._checks = [each async for each in _checks(self._local)]
                self._looked_at = trio.current_time()
        if not self._local.is_running:  # it has stopped meanwhile
            return [Check("node", _why_not_running(self._local))]
        return self._checks


async def _checks(local: LocalNode) -> AsyncIterator[Check]:
    yield Check("node")
    node = local.node
    yield Check("cluster", None if node.membership.is_registered else "it is no member now")
    yield Check("listeners", None if local.server.is_accepting else "they are closed")
    refused = [each.failed or each.read_only_reason for each in node.partitions.logs.managers]
    yield Check("data", next(filter(None, refused), None))
    yield Check("round_trip", await _round_trip(local))


async def _round_trip(local: LocalNode) -> str | None:
    """Ask the node as its clients do; returns what went wrong."""
    with trio.move_on_after(ROUND_TRIP_SECONDS):
        try:
            async with local.server.connect_in_process(local.endpoint) as stream:
                connection = Connection(stream)
                await connection.negotiate()
                nothing = messages.request_class(ApiKey.METADATA)(topics=[])
                await connection.request(ApiKey.METADATA, 9, nothing)
                return None
        except OSError as error:
            return str(error)
    return f"no answer within {ROUND_TRIP_SECONDS} seconds"


def _why_not_running(local: LocalNode) -> str:
    return {
        NodeState.STARTING: "it starts: its logs and groups are being looked at",
        NodeState.STOPPED: "it stops",
        NodeState.CRASHED: "it has crashed",
    }.get(local.state, "it comes back")
