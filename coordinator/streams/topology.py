"""Topology of a streams application, as its members send it (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.protocol.streams_group_metadata import StreamsGroupTopologyValue

Request = StreamsGroupHeartbeatRequest
Value = StreamsGroupTopologyValue

# Maximum number of entries of a topology: subtopologies, topics, configs of internal topics,
# copartition groups and their topic indexes.
TOPOLOGY_ENTRIES_MAX = 2_000


class StreamsTopology:
    """A stored topology: subtopologies that read topics, with one task per partition.

    Args:
        value: Record value, which has each subtopology once.

    Attributes:
        sources: Subtopology that reads each topic.
        required: All topics that must exist.
    """

    __slots__ = ("epoch", "required", "sources", "subtopologies", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.epoch = value.epoch
        self.subtopologies: Mapping[str, Value.Subtopology] = MappingProxyType(
            {each.subtopology_id: each for each in value.subtopologies}
        )
        self.sources: Mapping[str, str] = MappingProxyType(
            {
                topic: each.subtopology_id
                for each in value.subtopologies
                for topic in sources_of(each)
            }
        )
        self.required = frozenset(self.sources) | {
            topic.name for each in value.subtopologies for topic in each.state_changelog_topics
        }

    @property
    def description(self) -> bytes | None:
        """The encoded description of the topology, or None if no member has sent it."""
        return self.value.description

    def with_description(self, description: bytes) -> StreamsTopology:
        """Return the topology with another description."""
        return StreamsTopology(
            Value(
                epoch=self.epoch,
                subtopologies=self.value.subtopologies,
                description=description,
            )
        )

    def __eq__(self, other: object) -> bool:
        """Compare epochs and subtopologies, but not their order and not the descriptions."""
        if not isinstance(other, StreamsTopology):
            return NotImplemented
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies

    __hash__ = None  # type: ignore[assignment]


def sources_of(subtopology: Value.Subtopology) -> Iterable[str]:
    """Return the topics that a subtopology reads, including repartition topics."""
    yield from subtopology.source_topics
    for topic in subtopology.repartition_source_topics:
        yield topic.name


def topology_of(sent: Request.Topology) -> StreamsTopology:
    """Convert the topology of a request, which `check_topology` must have validated."""
    return StreamsTopology(
        Value(epoch=sent.epoch, subtopologies=[_subtopology(each) for each in sent.subtopologies])
    )


def _subtopology(sent: Request.Subtopology) -> Value.Subtopology:
    return Value.Subtopology(
        subtopology_id=sent.subtopology_id,
        source_topics=sent.source_topics,
        source_topic_regex=sent.source_topic_regex,
        state_changelog_topics=[_topic(each) for each in sent.state_changelog_topics],
        repartition_sink_topics=sent.repartition_sink_topics,
        repartition_source_topics=[_topic(each) for each in sent.repartition_source_topics],
        copartition_groups=[
            Value.CopartitionGroup(
                source_topics=each.source_topics,
                source_topic_regex=each.source_topic_regex,
                repartition_source_topics=each.repartition_source_topics,
            )
            for each in sent.copartition_groups
        ],
    )


def _topic(sent: Request.TopicInfo) -> Value.TopicInfo:
    return Value.TopicInfo(
        name=sent.name,
        partitions=sent.partitions,
        replication_factor=sent.replication_factor,
        topic_configs=[
            Value.TopicConfig(key=each.key, value=each.value) for each in sent.topic_configs
        ],
    )


def check_topology(sent: Request.Topology) -> None:
    """Validate the topology of a request.

    Raises:
        KafkaError: The topology is invalid.
    """
    check_topology_size(sent)
    if sent.epoch < 0:
        _invalid("Topology epoch must be non-negative.")
    if len({each.subtopology_id for each in sent.subtopologies}) < len(sent.subtopologies):
        _invalid("Subtopology IDs must be unique.")
    for each in sent.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions:
                raise KafkaError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is "
                    f"set to {topic.partitions}.",
                )
        for group in each.copartition_groups:
            for indexes, topics in (
                (group.source_topics, len(each.source_topics)),
                (group.repartition_source_topics, len(each.repartition_source_topics)),
            ):
                if any(not 0 <= index < topics for index in indexes):
                    _invalid(
                        f"Subtopology {each.subtopology_id} has a copartition group with an invalid topic index."
                    )


def check_topology_size(sent: Request.Topology) -> None:
    """Validate the size of a topology, before any work on its entries.

    Raises:
        KafkaError: The topology is too large.
    """
    entries = len(sent.subtopologies)
    for each in sent.subtopologies:
        if entries > TOPOLOGY_ENTRIES_MAX:
            break
        entries += _count_entries(each)
    if entries > TOPOLOGY_ENTRIES_MAX:
        _invalid(
            f"A topology may have at most {TOPOLOGY_ENTRIES_MAX} topics, configs and copartition indexes."
        )


def _count_entries(sent: Request.Subtopology) -> int:
    internal = (*sent.state_changelog_topics, *sent.repartition_source_topics)
    copartitioned = sum(
        1 + len(each.source_topics) + len(each.repartition_source_topics)
        for each in sent.copartition_groups
    )
    return (
        len(sent.source_topics)
        + len(sent.repartition_sink_topics)
        + sum(1 + len(each.topic_configs) for each in internal)
        + copartitioned
    )


def topics_named(sent: Request.Topology) -> Iterable[str]:
    """Return all topics that a topology names, each once."""
    names: dict[str, None] = {}
    for each in sent.subtopologies:
        names.update(dict.fromkeys(each.source_topics))
        names.update(dict.fromkeys(each.repartition_sink_topics))
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            names[topic.name] = None
    return names


def _invalid(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)
