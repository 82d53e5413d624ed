"""Dead-letter queues of share groups (KIP-1191)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.protocol.errors import ErrorCode, KafkaError

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .list_offsets import EARLIEST, LATEST, offsets_at

TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY_RECORD = "errors.deadletterqueue.copy.record.enable"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
NAME_PREFIX = "errors.deadletterqueue.topic.name.prefix"
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
        own = await _configs(cluster, Resource.GROUP, group)
    except KafkaError as error:
        return DeadLetterQueue(None, False, None, _unknown("the settings of the group", error))
    topic = own.get(TOPIC_NAME)
    if not topic:
        return None
    copies_records = own.get(COPY_RECORD) == "true"
    try:
        records = await _record_count(cluster, topic)
    except KafkaError as error:
        return DeadLetterQueue(topic, copies_records, None, _unknown(f"topic {topic}", error))
    problem = await _problem(
        cluster, topic, is_missing=records is None, copies_records=copies_records
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
    return (await _configs(cluster, Resource.GROUP, group)).get(TOPIC_NAME) or None


async def _configs(cluster: ClusterClient, kind: Resource, name: str) -> Configs:
    found = await describe_configs(cluster, kind, [name])
    return {each.name: each.value for each in found[name]}


async def _record_count(cluster: ClusterClient, topic: str) -> int | None:
    """Return the number of records in a topic; None if the topic does not exist.

    Raises:
        KafkaError: The user may not read the topic.
    """
    (row,) = (await cluster.metadata([topic])).topics
    if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if row.error_code:
        raise KafkaError(ErrorCode(row.error_code))
    partitions = [(topic, each.partition_index) for each in row.partitions]
    starts = await offsets_at(cluster, partitions, EARLIEST)
    ends = await offsets_at(cluster, partitions, LATEST)
    return sum(ends[each] - starts[each] for each in partitions)


async def _problem(
    cluster: ClusterClient, topic: str, *, is_missing: bool, copies_records: bool
) -> str | None:
    """Return the reason why the broker cannot write to a topic."""
    connection = await cluster.any()
    level = connection.features.get("share.version", 0)
    if level < SHARE_VERSION_MIN:
        return f"share.version is {level}; upgrade the feature to {SHARE_VERSION_MIN}"
    try:
        broker = await _configs(cluster, Resource.BROKER, str(min(cluster.endpoints)))
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
        own = await _configs(cluster, Resource.TOPIC, topic)
    except KafkaError as error:
        return _unknown(f"the settings of topic {topic}", error)
    if own.get(GROUP_ENABLE) != "true":
        return (
            f"topic {topic} is not enabled as a dead-letter queue; set {GROUP_ENABLE}=true for the "
            "topic"
        )
    if "compact" in (own.get("cleanup.policy") or "") and not copies_records:
        return (
            f"topic {topic} is compacted, and dead letters have no key; set {COPY_RECORD}=true for "
            "the group, or cleanup.policy=delete for the topic"
        )
    return None


def _unknown(what: str, error: KafkaError) -> str:
    return f"unknown, because {what} cannot be read ({error.code.name})"
