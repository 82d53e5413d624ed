"""How a node has the state of share partitions kept, wherever their share coordinators are (KIP-932)."""

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

ANSWER_SECONDS = 15
"""How long coordinators may take, with all attempts."""
RETRY_BACKOFF_SECONDS_MAX = 1
ROWS_MAX = 200
"""Of one request, and so done in one turn."""

AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""The coordinator is elsewhere or not ready: it is looked for again."""

Row: TypeAlias = Any
"""What is asked or answered about one share partition: each API has its own."""


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
    """Asks the share coordinators, those of this node without a connection.

    Each method takes what is asked of each share partition and returns what was answered, also for those
    that failed: COORDINATOR_NOT_AVAILABLE where no coordinator could be had for ANSWER_SECONDS. Until
    then it is tried again, so an operation may be done twice. Who has to be the only one that writes
    says so by epochs.

    Parameters:
      states: The share coordinators of this node.
      peers: The way to those of other nodes. It is used by nobody else, because an answer is given
        when it is committed there.
    """

    def __init__(self, states: ShareCoordinatorService, peers: Peers, node_id: int) -> None:
        self._states = states
        self._peers = peers
        self._node_id = node_id

    def coordinator_id(self, share: SharePartitionKey) -> int:
        """The node that has the state of a share partition; NO_LEADER when there is none now."""
        return self._states.coordinator_id(share.name)

    async def initialize(
        self, rows: Mapping[SharePartitionKey, InitializeShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, InitializeShareGroupStateResponse.Partition]:
        """Give share partitions a state, or begin new lives of them."""
        return await self._ask(INITIALIZE, rows)

    async def read(
        self, rows: Mapping[SharePartitionKey, ReadShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, ReadShareGroupStateResponse.Partition]:
        """The states of share partitions, for who leads them from now on."""
        return await self._ask(READ, rows)

    async def write(
        self, rows: Mapping[SharePartitionKey, WriteShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, WriteShareGroupStateResponse.Partition]:
        """Store what changed in share partitions."""
        return await self._ask(WRITE, rows)

    async def delete(
        self, rows: Mapping[SharePartitionKey, DeleteShareGroupStateRequest.Partition]
    ) -> dict[SharePartitionKey, DeleteShareGroupStateResponse.Partition]:
        """Take the states of share partitions away."""
        return await self._ask(DELETE, rows)

    async def summary(
        self, rows: Mapping[SharePartitionKey, ReadShareGroupStateSummaryRequest.Partition]
    ) -> dict[SharePartitionKey, ReadShareGroupStateSummaryResponse.Partition]:
        """Where share partitions begin."""
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
        """Ask about as many as are done in one turn, until all of them have an answer."""
        for share, row in left.items():
            row.partition = share.partition
        backoff = Backoff(RETRY_BACKOFF_SECONDS_MAX)
        with trio.move_on_after(ANSWER_SECONDS):
            while left:
                await self._try(api, left, answers)
                left = {share: row for share, row in left.items() if share not in answers}
                if left:
                    await trio.sleep(backoff.next())
        refused = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answers.update((share, _refused(api, share, refused)) for share in left)

    async def _try(
        self,
        api: _Api,
        rows: Mapping[SharePartitionKey, Row],
        answers: dict[SharePartitionKey, Any],
    ) -> None:
        """Ask once; what is to be asked again has no answer then."""
        try:
            await self._states.create_topic()
        except KafkaError as error:
            if error.code not in AGAIN:
                answers.update((share, _refused(api, share, error)) for share in rows)
            return
        async with trio.open_nursery() as nursery:
            for (node_id, group_id), shares in self._places(rows).items():
                asked = {share: rows[share] for share in shares}
                if node_id == self._node_id:
                    nursery.start_soon(self._ask_here, api, asked, answers)
                else:
                    nursery.start_soon(self._ask_node, api, node_id, group_id, asked, answers)

    def _places(
        self, shares: Iterable[SharePartitionKey]
    ) -> dict[tuple[int, str], list[SharePartitionKey]]:
        """By node and group, as far as there is a node."""
        places: defaultdict[tuple[int, str], list[SharePartitionKey]] = defaultdict(list)
        for share in shares:
            node_id = self.coordinator_id(share)
            if node_id != NO_LEADER:
                places[node_id, share.group_id].append(share)
        return places

    async def _ask_here(
        self,
        api: _Api,
        rows: Mapping[SharePartitionKey, Row],
        answers: dict[SharePartitionKey, Any],
    ) -> None:
        states = self._states
        outcomes: dict[SharePartitionKey, Any] = {}
        for share, row in rows.items():
            with suppress(KafkaError):  # it is not here any more, or not yet
                outcomes[share] = states.perform(api.operation, share, row)
        for share, outcome in outcomes.items():
            for row in await outcome_of(outcome) or ():
                _keep(answers, share, row)

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
                    _keep(answers, share, row)


def _keep(answers: dict[SharePartitionKey, Any], share: SharePartitionKey, row: Row) -> None:
    if row.error_code not in AGAIN:
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


def _refused(api: _Api, share: SharePartitionKey, error: KafkaError) -> Row:
    return api.response.Partition(
        partition=share.partition, error_code=error.code, error_message=error.message
    )
