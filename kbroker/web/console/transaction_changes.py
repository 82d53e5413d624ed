"""Hanging transactions, and aborts of open transactions after a preview."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.errors import NoSuchTopic
from kbroker.client.topics import Partition
from kbroker.client.transactions import (
    abort_transaction,
    fence_producer,
    find_hanging_transaction,
    find_ongoing_transaction,
    hanging_transactions,
    open_transactions,
)
from kbroker.protocol.primitives import INT64_MAX
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation, AclResourceType, Resource

from .answers import (
    PARTITION_MAX,
    REST,
    ApiError,
    json_response,
    json_rows_response,
    number,
)
from .api import Api, Permission, field, read_json_body
from .sessions import Viewer

# Maximum number of partitions that one request searches for hanging transactions.
PARTITIONS_SEARCHED_MAX = 1_000
# Maximum number of rows per response.
ROWS_MAX = 500
# Default of the brokers' transaction.max.timeout.ms: transactions with newer records may be open.
OLDER_THAN_MS = 900_000
WRITE_TRANSACTION = Permission(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, "name")


class TransactionChanges:
    """Routes that find and abort transactions."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/transactions/hanging", self._hanging),
            self._api.write_route("/transactions/abort", self._abort_hanging),
            self._api.write_route(
                "/transactions/{name:path}/abort", self._abort_open, WRITE_TRANSACTION
            ),
        ]

    async def _hanging(self, request: Request, viewer: Viewer) -> Response:
        """Return the hanging transactions of the topics that the viewer may read."""
        topic = request.query_params.get("topic", "")
        older_than_ms = number(request, "older_than_ms", OLDER_THAN_MS, 0, INT64_MAX >> 1)
        before_ms = self._api.node.clock.log_ms() - older_than_ms
        searched, omitted = await self._partitions_of(topic, viewer)
        found = await hanging_transactions(viewer.cluster, searched, before_ms=before_ms)
        fields = {
            "searched": len(searched),
            "omitted_partitions": omitted,
            "may_abort": self._api.may_change(viewer, AclOperation.ALTER),
        }
        rows = (one.row() for one in found[:ROWS_MAX])
        return await json_rows_response(fields, "transactions", rows)

    async def _partitions_of(self, topic: str, viewer: Viewer) -> tuple[list[Partition], int]:
        """Return the partitions to search, and the number of those above the limit."""
        topics = self._api.node.cluster.topics
        if topic and topic not in topics:
            raise NoSuchTopic(
                f"topic {topic!r} does not exist; leave it empty to search all topics"
            )
        found: list[Partition] = []
        duty_cycle, omitted = DutyCycle(rest=REST), 0
        for name in [topic] if topic else sorted(topics):
            await duty_cycle.pause()
            if not viewer.may(AclOperation.READ, Resource(AclResourceType.TOPIC, name)):
                continue
            count = len(topics[name].partitions) if name in topics else 0
            taken = min(count, PARTITIONS_SEARCHED_MAX - len(found))
            found += [(name, index) for index in range(taken)]
            omitted += count - taken
        return found, omitted

    async def _abort_hanging(self, request: Request, viewer: Viewer) -> Response:
        """Write an abort marker into the partition of a hanging transaction."""
        body = await read_json_body(request)
        partition = field(body, "topic", str), field(body, "partition", int, 0)
        if not 0 <= partition[1] <= PARTITION_MAX:
            raise ApiError(400, f"partition must be from 0 to {PARTITION_MAX}")
        one = await find_hanging_transaction(
            viewer.cluster, partition, field(body, "start_offset", int, 0)
        )
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await abort_transaction(viewer.cluster, one)
        return json_response({"dry_run": dry_run, "aborted": one.row()})

    async def _abort_open(self, request: Request, viewer: Viewer) -> Response:
        """Fence the producer of a transactional ID and abort its open transaction."""
        body = await read_json_body(request)
        name = request.path_params["name"]
        found = await find_ongoing_transaction(viewer.cluster, name)
        readable = [
            (topic, index)
            for topic, index in found.partitions[:ROWS_MAX]
            if viewer.may(AclOperation.READ, Resource(AclResourceType.TOPIC, topic))
        ]
        parts = [
            one.row()
            for one in await open_transactions(viewer.cluster, readable)
            if one.producer_id == found.producer_id
        ]
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await fence_producer(viewer.cluster, name)
        return json_response({"dry_run": dry_run, "aborted": found.row(), "parts": parts})
