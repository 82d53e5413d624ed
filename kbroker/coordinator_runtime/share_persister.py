"""Client of the share coordinators on all nodes (KIP-932)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import trio

from kbroker.cluster import NO_LEADER
from kbroker.cluster.peers import Peers
from kbroker.coordinator import Result, ShareCoordinator
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.backoff import Backoff

from .shards import outcome_of
from .share_coordinator import ShareCoordinatorService

# Timeout in seconds for all attempts of a request.
ANSWER_SECONDS = 15
# Maximum retry backoff in seconds.
RETRY_BACKOFF_SECONDS_MAX = 1
# Maximum number of rows per request, which the coordinator processes in one time slice.
ROWS_MAX = 200

# Errors after which the coordinator is looked up again: it has moved or is not ready.
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)

# Row of one share partition in a request or a response. Each API has its own type.
Row: TypeAlias = Any


class _Api(NamedTuple):
    request: Any
    response: Any
    operation: Callable[..., Result[Any]]


INITIALIZE = _Api(
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ShareCoordinator.initialize,
)
READ = _Api(ReadShareGroupStateRequest, ReadShareGroupStateResponse, ShareCoordinator.read)
WRITE = _Api(WriteShareGroupStateRequest, WriteShareGroupStateResponse, ShareCoordinator.write)
DELETE = _Api(DeleteShareGroupStateRequest, DeleteShareGroupStateResponse, ShareCoordinator.delete)
SUMMARY = _Api(
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ShareCoordinator.summary,
)


class SharePersister:
    """Client of the share coordinators. Coordinators of this node are called without a connection.

    Each method takes one row per share partition and returns one row per share partition. A request
    is retried for ANSWER_SECONDS; then its rows have the error COORDINATOR_NOT_AVAILABLE. Because
    of retries, an operation may be executed twice. Epochs fence all writers but the last one.

    Args:
        states: Share coordinators of this node.
        peers: Connections to other nodes. No other requests use them, because a response waits
            until the records are committed.
        node_id: ID of this node.
    """

    def __init__(self, states: ShareCoordinatorService, peers: Peers, node_id: int) -> None:
        self._states = states
        self._peers = peers
        self._node_id = node_id

    def coordinator_id(self, share: SharePartitionKey) -> int:
        """Return the node of a share partition's coordinator, or NO_LEADER if there is none now."""
        return self._states.coordinator_id(share.name)

    async def initialize(
        self, rows: Mapping[SharePartitionKey, InitializeShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, InitializeShareGroupStateResponse.Partition]:
        """Initialize the states of share partitions, or reset them with a new state epoch."""
        return await self._ask(INITIALIZE, rows)

    async def read(
        self, rows: Mapping[SharePartitionKey, ReadShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, ReadShareGroupStateResponse.Partition]:
        """Return the states of share partitions to their new leader."""
        return await self._ask(READ, rows)

    async def write(
        self, rows: Mapping[SharePartitionKey, WriteShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, WriteShareGroupStateResponse.Partition]:
        """Store changes of the states of share partitions."""
        return await self._ask(WRITE, rows)

    async def delete(
        self, rows: Mapping[SharePartitionKey, DeleteShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, DeleteShareGroupStateResponse.Partition]:
        """Delete the states of share partitions."""
        return await self._ask(DELETE, rows)

    async def summary(
        self, rows: Mapping[SharePartitionKey, ReadShareGroupStateSummaryRequest.Partition]
    ) -> dict[SharePartitionKey, ReadShareGroupStateSummaryResponse.Partition]:
        """Return the start offsets of share partitions."""
        return await self._ask(SUMMARY, rows)

    async def aclose(self) -> None:
        """Close the connections to other nodes."""
        await self._peers.aclose()

    async def _ask(
        self, api: _Api, rows: Mapping[SharePartitionKey, Row]
    ) -> dict[SharePartitionKey, Any]:
        answers: dict[SharePartitionKey, Any] = {}
        left = iter(rows.items())
        async with trio.open_nursery() as nursery:
            while some := dict(islice(left, ROWS_MAX)):
                nursery.start_soon(self._ask_some, api, some, answers)
        return answers

    async def _ask_some(
        self, api: _Api, left: dict[SharePartitionKey, Row], answers: dict[SharePartitionKey, Any]
    ) -> None:
        """Send the rows of one request, with retries, until each row has a response."""
        for share, row in left.items():
            row.partition = share.partition
        backoff = Backoff(RETRY_BACKOFF_SECONDS_MAX)
        with trio.move_on_after(ANSWER_SECONDS):
            while left:
                await self._send_once(api, left, answers)
                left = {share: row for share, row in left.items() if share not in answers}
                if left:
                    await trio.sleep(backoff.next())
        error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answers.update((share, _error_row(api, share, error)) for share in left)

    async def _send_once(
        self,
        api: _Api,
        rows: Mapping[SharePartitionKey, Row],
        answers: dict[SharePartitionKey, Any],
    ) -> None:
        """Send rows once. Rows that must be retried get no entry in `answers`."""
        try:
            await self._states.create_topic()
        except KafkaError as error:
            if error.code not in RETRIABLE_ERRORS:
                answers.update((share, _error_row(api, share, error)) for share in rows)
            return
        async with trio.open_nursery() as nursery:
            for (node_id, group_id), shares in self._group_by_coordinator(rows).items():
                asked = {share: rows[share] for share in shares}
                if node_id == self._node_id:
                    nursery.start_soon(self._ask_local, api, asked, answers)
                else:
                    nursery.start_soon(self._ask_node, api, node_id, group_id, asked, answers)

    def _group_by_coordinator(
        self, shares: Iterable[SharePartitionKey]
    ) -> dict[tuple[int, str], list[SharePartitionKey]]:
        """Group share partitions by coordinator node and group ID. Omit those without a node."""
        groups: defaultdict[tuple[int, str], list[SharePartitionKey]] = defaultdict(list)
        for share in shares:
            node_id = self.coordinator_id(share)
            if node_id != NO_LEADER:
                groups[node_id, share.group_id].append(share)
        return groups

    async def _ask_local(
        self,
        api: _Api,
        rows: Mapping[SharePartitionKey, Row],
        answers: dict[SharePartitionKey, Any],
    ) -> None:
        states = self._states
        outcomes: dict[SharePartitionKey, Any] = {}
        for share, row in rows.items():
            with suppress(KafkaError):  # this node is not the coordinator
                outcomes[share] = states.perform(api.operation, share, row)
        for share, outcome in outcomes.items():
            for row in await outcome_of(outcome) or ():
                _add_final(answers, share, row)

    async def _ask_node(
        self,
        api: _Api,
        node_id: int,
        group_id: str,
        rows: Mapping[SharePartitionKey, Row],
        answers: dict[SharePartitionKey, Any],
    ) -> None:
        with suppress(OSError):
            answer = await self._peers.ask(node_id, _request(api, group_id, rows))
            for topic_id, row in _rows(answer):
                share = SharePartitionKey(group_id, topic_id, row.partition)
                if share in rows:
                    _add_final(answers, share, row)


def _add_final(answers: dict[SharePartitionKey, Any], share: SharePartitionKey, row: Row) -> None:
    if row.error_code not in RETRIABLE_ERRORS:
        answers[share] = row


def _request(api: _Api, group_id: str, rows: Mapping[SharePartitionKey, Row]) -> Any:
    topics: defaultdict[UUID, list[Row]] = defaultdict(list)
    for share, row in rows.items():
        topics[share.topic_id].append(row)
    return api.request(
        group_id=group_id,
        topics=[
            api.request.Topic(topic_id=topic_id, partitions=some)
            for topic_id, some in topics.items()
        ],
    )


def _rows(answer: Any) -> Iterator[tuple[UUID, Row]]:
    for topic in answer.results:
        for row in topic.partitions:
            yield topic.topic_id, row


def _error_row(api: _Api, share: SharePartitionKey, error: KafkaError) -> Row:
    return api.response.Partition(
        partition=share.partition, error_code=error.code, error_message=error.message
    )
