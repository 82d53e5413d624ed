"""Create and delete topics, add partitions, and delete records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from uuid import UUID

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)

from .cluster import ClusterClient
from .errors import CannotConnect, ClientError, NotReachable, TimedOut, check, error_code

# Partition count or replication factor that selects the broker's default.
DEFAULT = -1
TIMEOUT_MS = 30_000
READY_SECONDS = 15
# Time between two checks for leaders of new partitions.
READY_POLL_SECONDS = 0.02

Partition = tuple[str, int]
NO_IDS: Final[Mapping[str, UUID]] = MappingProxyType({})


class TopicReplaced(ClientError):
    """A topic was deleted and created again after it was looked up."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"topic {name!r} was deleted and created again in the meantime; nothing was changed",
            hint="repeat the command to see the new topic",
        )


@dataclass(slots=True)
class NewTopic:
    """A topic to create.

    Attributes:
        assignments: Broker IDs of the replicas by partition. If it is not empty, `partitions` and
            `replication_factor` must be `DEFAULT`.
    """

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


async def create_topics(
    cluster: ClusterClient, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> dict[str, tuple[ErrorCode, str | None]]:
    """Create topics.

    Args:
        cluster: The cluster to change.
        topics: The topics to create.
        validate_only: Check the request without creating the topics.

    Returns:
        Error code and error message by topic.
    """
    rows = [
        CreateTopicsRequest.Topic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=[
                CreateTopicsRequest.Assignment(partition_index=index, broker_ids=list(nodes))
                for index, nodes in topic.assignments.items()
            ],
            configs=[CreateTopicsRequest.Config(name=k, value=v) for k, v in topic.configs.items()],
        )
        for topic in topics
    ]
    request = CreateTopicsRequest(topics=rows, timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    answer = await (await cluster.controller()).ask(request, oldest=4)
    return {row.name: (error_code(row.error_code), row.error_message) for row in answer.topics}


async def wait_until_ready(cluster: ClusterClient, partitions: Mapping[str, int]) -> None:
    """Wait until every partition of the topics has a leader.

    Apache Kafka may respond to CreateTopics before all brokers know the new topics.

    Args:
        cluster: The cluster to query.
        partitions: Expected partition count by topic; negative accepts any count.

    Raises:
        TimedOut: Partitions still lack a leader after `READY_SECONDS`.
    """
    deadline = trio.current_time() + READY_SECONDS
    while True:
        waiting = []
        for topic in (await cluster.metadata(partitions)).topics:
            name = topic.name or ""
            led = sum(each.leader_id >= 0 for each in topic.partitions)
            if topic.error_code or not led or led < max(partitions[name], len(topic.partitions)):
                waiting.append(name)
        if not waiting:
            return
        if trio.current_time() > deadline:
            raise TimedOut(
                f"after {READY_SECONDS} s these topics still have partitions without a leader: "
                f"{', '.join(sorted(waiting))}",
                hint="run `kbroker cluster health` for details",
            )
        await trio.sleep(READY_POLL_SECONDS)


async def delete_topics(
    cluster: ClusterClient, names: Iterable[str], *, ids: Mapping[str, UUID] = NO_IDS
) -> dict[str, tuple[ErrorCode, str | None]]:
    """Delete topics.

    Args:
        cluster: The cluster to change.
        names: Topic names.
        ids: Topic IDs by name. If a topic was deleted and created again, it has another ID and is
            kept. Topics without an ID here are deleted by name.

    Returns:
        Error code and error message by topic; UNKNOWN_TOPIC_ID if no topic has the ID.
    """
    known = {topic_id: name for name, topic_id in ids.items()}
    rows = [
        DeleteTopicsRequest.Topic(topic_id=ids[name])
        if name in ids
        else DeleteTopicsRequest.Topic(name=name)
        for name in names
    ]
    request = DeleteTopicsRequest(topics=rows, timeout_ms=TIMEOUT_MS)
    answer = await (await cluster.controller()).ask(request, oldest=6)
    return {
        known.get(row.topic_id, row.name or ""): (error_code(row.error_code), row.error_message)
        for row in answer.responses
    }


async def topic_ids(cluster: ClusterClient, names: Iterable[str]) -> dict[str, UUID]:
    """Return the IDs of topics by name, without those of brokers that have no topic IDs.

    Raises:
        NoSuchTopic: A topic does not exist.
    """
    found = await cluster.topics(list(dict.fromkeys(names)))
    return {row.name or "": row.topic_id for row in found if row.topic_id.int}


async def check_same_topics(cluster: ClusterClient, ids: Mapping[str, UUID]) -> None:
    """Check that topics were not deleted and created again.

    Args:
        cluster: The cluster to query.
        ids: Earlier result of `topic_ids`.

    Raises:
        NoSuchTopic: A topic does not exist any more.
        TopicReplaced: A topic has another ID.
    """
    current = await topic_ids(cluster, ids)
    for name, topic_id in ids.items():
        if current.get(name, topic_id) != topic_id:
            raise TopicReplaced(name)


async def grow_topic(
    cluster: ClusterClient,
    name: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Increase the number of partitions of a topic.

    Args:
        cluster: The cluster to change.
        name: Topic name.
        count: New number of partitions.
        assignments: Broker IDs of the replicas of each new partition; None lets the broker choose.
        validate_only: Check the request without adding the partitions.

    Raises:
        KafkaError: The broker rejects the request.
    """
    cls = CreatePartitionsRequest
    rows = (
        None
        if assignments is None
        else [cls.Assignment(broker_ids=list(each)) for each in assignments]
    )
    row = cls.Topic(name=name, count=count, assignments=rows)
    request = cls(topics=[row], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    answer = await (await cluster.controller()).ask(request)
    (result,) = answer.results
    check(result.error_code, result.error_message)


async def delete_records(
    cluster: ClusterClient, offsets: Mapping[Partition, int]
) -> dict[Partition, tuple[ErrorCode, int]]:
    """Delete the records before the given offsets.

    Args:
        cluster: The cluster to change.
        offsets: New log start offset by partition; -1 is the high watermark.

    Returns:
        Error code and log start offset by partition. If a leader cannot be reached, its partitions
        have an error code, and those of other leaders are changed.
    """
    results: dict[Partition, tuple[ErrorCode, int]] = {}
    for node_id, owned in (await by_leader(cluster, offsets)).items():
        if node_id < 0:
            results |= dict.fromkeys(owned, (ErrorCode.LEADER_NOT_AVAILABLE, -1))
            continue
        rows: dict[str, list[DeleteRecordsRequest.Partition]] = {}
        for name, index in owned:
            row = DeleteRecordsRequest.Partition(partition_index=index, offset=offsets[name, index])
            rows.setdefault(name, []).append(row)
        topics = [DeleteRecordsRequest.Topic(name=k, partitions=v) for k, v in rows.items()]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        try:
            answer = await (await cluster.node(node_id)).ask(request)
        except (OSError, CannotConnect, NotReachable):
            results |= dict.fromkeys(owned, (ErrorCode.NETWORK_EXCEPTION, -1))
            continue
        except TimedOut:
            results |= dict.fromkeys(owned, (ErrorCode.REQUEST_TIMED_OUT, -1))
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                outcome = error_code(part.error_code), part.low_watermark
                results[topic.name, part.partition_index] = outcome
    return results


async def by_leader(
    cluster: ClusterClient, partitions: Iterable[Partition]
) -> dict[int, list[Partition]]:
    """Group partitions by leader; partitions without a leader are under -1.

    Raises:
        NoSuchTopic: A topic does not exist.
    """
    wanted = list(partitions)
    names = list(dict.fromkeys(name for name, _ in wanted))
    leaders = {
        (topic.name or "", row.partition_index): row.leader_id
        for topic in await cluster.topics(names)
        for row in topic.partitions
    }
    owned: dict[int, list[Partition]] = {}
    for partition in wanted:
        owned.setdefault(leaders.get(partition, -1), []).append(partition)
    return owned
