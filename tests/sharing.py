"""A share group member for tests, which sends requests only to partition leaders (KIP-932)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trio

from kbroker.broker import Broker
from kbroker.node.node import Node
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.share_groups import ShareAcknowledgeRequest, ShareFetchRequest
from kbroker.protocol.messages.share_state import InitializeShareGroupStateRequest
from kbroker.protocol.share_state_log import SharePartitionKey

from .wire import ANSWER_SECONDS, Topic, Wire, create_topic, until

GROUP, MEMBER = "queue", "a"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
# Acknowledged records: first offset, last offset, one type or one per record.
AcknowledgedRange = tuple[int, int, int | list[int]]


async def shared_topic(
    broker: Broker, wire: Wire, partitions: int = 1, *, start: int = 0, group: str = GROUP
) -> Topic:
    """Create a topic, and the state of a share group for it."""
    topic = await create_topic(wire, "t", partitions)
    await initialize(broker.node, topic, partitions, start=start, group=group)
    return topic


async def initialize(
    node: Node,
    topic: Topic,
    partitions: int = 1,
    *,
    start: int = 0,
    epoch: int = 0,
    group: str = GROUP,
) -> None:
    """Initialise share state like the group coordinator does for a new subscription."""
    row = InitializeShareGroupStateRequest.Partition
    results = await node.share.persister.initialize(
        {
            SharePartitionKey(group, topic.id, index): row(start_offset=start, state_epoch=epoch)
            for index in range(partitions)
        }
    )
    assert {each.error_code for each in results.values()} == {0}


class ShareMember:
    """A member and its share session on one connection."""

    def __init__(
        self, wire: Wire, topic: Topic, name: str = MEMBER, *, group: str = GROUP, version: int = 2
    ) -> None:
        self.wire = wire
        self.topic = topic
        self.name = name
        self.group = group
        self.version = version
        self.epoch = 0

    def fetch_request(
        self,
        partitions: tuple[int, ...] = (0,),
        acknowledgements: dict[int, list[AcknowledgedRange]] | None = None,
        *,
        forget: tuple[int, ...] = (),
        topic_id: UUID | None = None,
        **fields: Any,
    ) -> ShareFetchRequest:
        cls = ShareFetchRequest
        rows = [
            cls.Partition(
                partition_index=index,
                acknowledgement_batches=_batches(cls, (acknowledgements or {}).get(index)),
            )
            for index in dict.fromkeys((*partitions, *(acknowledgements or {})))
        ]
        topic_id = topic_id or self.topic.id
        defaults: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "max_wait_ms": ANSWER_SECONDS * 1000,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": [cls.Topic(topic_id=topic_id, partitions=rows)] if rows else [],
            "forgotten_topics_data": [
                cls.ForgottenTopic(topic_id=topic_id, partitions=list(forget))
            ]
            if forget
            else [],
        }
        return cls(**defaults | fields)

    async def send_fetch(self, *args: Any, **fields: Any) -> None:
        await self.wire.send(FETCH, self.version, self.fetch_request(*args, **fields))
        self.epoch = _next(self.epoch)

    async def fetch(self, *args: Any, **fields: Any) -> Any:
        """Send a ShareFetch request and return the response."""
        response = await self.wire.ask(FETCH, self.version, self.fetch_request(*args, **fields))
        if not response.error_code:
            self.epoch = _next(self.epoch)
        return response

    async def fetch_error_row(self) -> Any:
        """Return the row of partition 0 with its error; as in Kafka, the response is immediate."""
        with trio.fail_after(30):
            return row_of(await self.fetch(max_wait_ms=600_000))

    async def acquire(self, *args: Any, **fields: Any) -> list[tuple[int, int, int]]:
        """Return the acquired records of partition 0, with their delivery counts."""
        response = await self.fetch(*args, **fields)
        assert not response.error_code, response
        row = row_of(response)
        assert not row.error_code, row
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for each in row.acquired_records
        ]

    async def begin(self, *partitions: int) -> None:
        """Open the session without waiting for records."""
        await self.fetch(partitions or (0,), max_wait_ms=0)

    async def acknowledge_partition(
        self, *acknowledgements: AcknowledgedRange, partition: int = 0, **fields: Any
    ) -> Any:
        """Send acknowledgements and return the row of the response."""
        response = await self.acknowledge({partition: list(acknowledgements)}, **fields)
        assert not response.error_code, response
        return row_of(response, partition)

    async def acknowledge(
        self, acknowledgements: dict[int, list[AcknowledgedRange]], **fields: Any
    ) -> Any:
        """Send acknowledgements and return the response."""
        message = self.acknowledgement(acknowledgements, **fields)
        response = await self.wire.ask(ACKNOWLEDGE, self.version, message)
        if not response.error_code:
            self.epoch = _next(self.epoch)
        return response

    def acknowledgement(
        self, acknowledgements: dict[int, list[AcknowledgedRange]], **fields: Any
    ) -> ShareAcknowledgeRequest:
        cls = ShareAcknowledgeRequest
        rows = [
            cls.Partition(partition_index=index, acknowledgement_batches=_batches(cls, some))
            for index, some in acknowledgements.items()
        ]
        defaults: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "topics": [cls.Topic(topic_id=self.topic.id, partitions=rows)],
        }
        return cls(**defaults | fields)

    async def close(self) -> Any:
        """End the session."""
        message = self.fetch_request((), share_session_epoch=-1)
        self.epoch = 0
        return await self.wire.ask(FETCH, self.version, message)


def _next(epoch: int) -> int:
    return epoch + 1


def _batches(cls: Any, acknowledgements: list[AcknowledgedRange] | None) -> list[Any]:
    return [
        cls.AcknowledgementBatch(
            first_offset=first,
            last_offset=last,
            acknowledge_types=[types] if isinstance(types, int) else types,
        )
        for first, last, types in acknowledgements or ()
    ]


def row_of(response: Any, partition: int = 0) -> Any:
    """Return the row of one partition."""
    (row,) = [
        row
        for topic in response.responses
        for row in topic.partitions
        if row.partition_index == partition
    ]
    return row


async def wait_until_stored(node: Node) -> None:
    """Wait until no share state is left to store."""
    await until(
        lambda: not any(share_partition.is_busy for share_partition in node.share.partitions)
    )
