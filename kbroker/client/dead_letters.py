"""Dead-letter queues of share groups (KIP-1191)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbroker.protocol.errors import ErrorCode, KafkaError

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .list_offsets import EARLIEST, LATEST, list_offsets
from .topics import Partition

TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY_RECORD = "errors.deadletterqueue.copy.record.enable"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
NAME_PREFIX = "errors.deadletterqueue.topic.name.prefix"
CLEANUP_POLICY = "cleanup.policy"
# First level of the feature `share.version` with dead-letter queues.
SHARE_VERSION_MIN = 2

Configs = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """Dead-letter queue of a share group.

    Attributes:
        topic: Topic name; None if the user may not read the settings of the group.
        copies_records: True if a dead letter has the key, value and headers of its source.
        records: Number of records in the topic, which several groups may use; None if the topic
            does not exist or cannot be read.
        problem: Reason why the broker cannot write to the topic, or why this is unknown; None if
            there is no problem.
    """

    topic: str | None
    copies_records: bool
    records: int | None
    problem: str | None


async def dead_letter_queue(cluster: ClusterClient, group: str) -> DeadLetterQueue | None:
    """Return the dead-letter queue of a share group, or None if the group has none.

    Args:
        cluster: The cluster of the group.
        group: Group ID.
    """
    try:
        own = await _configs(cluster, Resource.GROUP, group, TOPIC_NAME, COPY_RECORD)
    except KafkaError as error:
        return DeadLetterQueue(None, False, None, _unknown("the settings of the group", error))
    topic = own.get(TOPIC_NAME)
    if not topic:
        return None
    copies_records = own.get(COPY_RECORD) == "true"
    try:
        partitions = await _partitions(cluster, topic)
    except KafkaError as error:
        return DeadLetterQueue(topic, copies_records, None, _unknown(f"topic {topic}", error))
    records, problem = await _record_count(cluster, partitions)
    problem = problem or await _problem(
        cluster, topic, is_missing=not partitions, copies_records=copies_records
    )
    return DeadLetterQueue(topic, copies_records, records, problem)


async def dead_letter_topic(cluster: ClusterClient, group: str) -> str | None:
    """Return the name of a group's dead-letter queue topic, or None if the group has none.

    Args:
        cluster: The cluster of the group.
        group: Group ID.

    Raises:
        KafkaError: The user may not read the settings of the group.
    """
    return (await _configs(cluster, Resource.GROUP, group, TOPIC_NAME)).get(TOPIC_NAME) or None


async def _configs(cluster: ClusterClient, kind: Resource, name: str, *keys: str) -> Configs:
    found = await describe_configs(cluster, kind, [name], keys=keys)
    return {each.name: each.value for each in found[name]}


async def _partitions(cluster: ClusterClient, topic: str) -> list[Partition]:
    """Return the partitions of a topic; an empty list if the topic does not exist.

    Raises:
        KafkaError: The user may not read the topic.
    """
    (row,) = (await cluster.metadata([topic])).topics
    if row.error_code and row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise KafkaError(ErrorCode(row.error_code))
    return [(topic, each.partition_index) for each in row.partitions]


async def _record_count(
    cluster: ClusterClient, partitions: Sequence[Partition]
) -> tuple[int | None, str | None]:
    """Return the number of records in a topic, or the reason why a partition cannot be read."""
    if not partitions:
        return None, None
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    for partition, found in (*starts.items(), *ends.items()):
        if found.error:
            return None, f"partition {partition[1]} is not available ({found.error.name})"
    return sum(ends[each].offset - starts[each].offset for each in partitions), None


async def _problem(
    cluster: ClusterClient, topic: str, *, is_missing: bool, copies_records: bool
) -> str | None:
    """Return the reason why the broker cannot write to a topic."""
    connection = await cluster.any()
    level = connection.features.get("share.version", 0)
    if level < SHARE_VERSION_MIN:
        return f"share.version is {level}; upgrade the feature to {SHARE_VERSION_MIN}"
    try:
        node_id = str(min(cluster.endpoints))
        broker = await _configs(cluster, Resource.BROKER, node_id, NAME_PREFIX, AUTO_CREATE)
    except KafkaError as error:
        return _unknown("the settings of the broker", error)
    prefix = broker.get(NAME_PREFIX) or ""
    if not topic.startswith(prefix):
        return f"topic name {topic} does not start with {prefix}, the value of {NAME_PREFIX}"
    if is_missing:
        if broker.get(AUTO_CREATE) == "true":
            return None
        return f"topic {topic} does not exist; create it, or set {AUTO_CREATE}=true"
    try:
        own = await _configs(cluster, Resource.TOPIC, topic, GROUP_ENABLE, CLEANUP_POLICY)
    except KafkaError as error:
        return _unknown(f"the settings of topic {topic}", error)
    if own.get(GROUP_ENABLE) != "true":
        return (
            f"topic {topic} is not enabled as a dead-letter queue; set {GROUP_ENABLE}=true for the "
            "topic"
        )
    if "compact" in (own.get(CLEANUP_POLICY) or "") and not copies_records:
        return (
            f"topic {topic} is compacted, and dead letters have no key; set {COPY_RECORD}=true for "
            f"the group, or {CLEANUP_POLICY}=delete for the topic"
        )
    return None


def _unknown(what: str, error: KafkaError) -> str:
    return f"unknown, because {what} cannot be read ({error.code.name})"
