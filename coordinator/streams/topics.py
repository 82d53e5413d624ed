"""Topics that a topology needs, and their partition counts (KIP-1071).

Source topics must exist. Repartition topics (between subtopologies) and changelog topics (state)
are internal: their partition counts are derived from the source topics, and the coordinator
requests their creation. Tasks are assigned when all topics exist with the required partition
counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, NoReturn, TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.streams_group_metadata import StreamsGroupTopologyValue

from .topology import StreamsTopology, sources_of

Subtopology: TypeAlias = StreamsGroupTopologyValue.Subtopology
# Returns the partition count of a topic, or None if the topic does not exist.
CountOf: TypeAlias = Callable[[str], "int | None"]

# Status codes that members receive.
MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS = 1, 2, 3
# Maximum number of topic names in a status detail.
NAMES_SHOWN = 3
# Maximum number of tasks of a group. A single member may have all of them in one step.
TASKS_MAX = 20_000


class ConfiguredInternalTopic(NamedTuple):
    """An internal topic of the application. A replication factor of 0 means the default."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


class ConfiguredSubtopology(NamedTuple):
    """A subtopology whose topics and partition counts are known.

    Attributes:
        tasks: Number of tasks.
        sources: All topics that the subtopology reads, including repartition topics.
    """

    tasks: int
    sources: frozenset[str]
    source_topics: tuple[str, ...]
    sinks: tuple[str, ...]
    repartition_sources: tuple[ConfiguredInternalTopic, ...]
    changelogs: tuple[ConfiguredInternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)


class Problem(NamedTuple):
    """Reason why no tasks can be assigned: a status code and its detail."""

    status: int
    detail: str


class ConfiguredTopology(NamedTuple):
    """Result of configuring a topology.

    Attributes:
        subtopologies: Configured subtopologies by ID, or None if the topics do not permit it.
        missing: Internal topics to create.
        problem: Reason why the group is not ready, or None.
    """

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing: Mapping[str, ConfiguredInternalTopic]
    problem: Problem | None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _InvalidTopics(Exception):
    """The topics do not permit an assignment."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.problem = Problem(status, detail)


def configure(topology: StreamsTopology, count_of: CountOf) -> ConfiguredTopology:
    """Derive the internal topics and task counts of a topology from the existing topics.

    Raises:
        KafkaError: STREAMS_INVALID_TOPOLOGY, if the topology does not determine them.
    """
    try:
        _check_sources(topology, count_of)
        counts = _Counts(topology, count_of)
        counts.decide()
        subtopologies = {
            each: counts.configure_subtopology(topology.subtopologies[each])
            for each in sorted(topology.subtopologies)
        }
        missing = _missing_topics(topology, subtopologies, count_of)
    except _InvalidTopics as error:
        return ConfiguredTopology(topology.epoch, None, {}, error.problem)
    if sum(each.tasks for each in subtopologies.values()) > TASKS_MAX:
        _invalid(f"A group may have at most {TASKS_MAX} tasks.")
    problem = None
    if missing:
        detail = f"Internal topics are missing: {_join_names(missing)}"
        problem = Problem(MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def _check_sources(topology: StreamsTopology, count_of: CountOf) -> None:
    wanted = {name for each in topology.subtopologies.values() for name in each.source_topics}
    missing = sorted(name for name in wanted if count_of(name) is None)
    if missing:
        raise _InvalidTopics(
            MISSING_SOURCE_TOPICS, f"Source topics {_join_names(missing)} are missing."
        )


class _Counts:
    """Actual or required partition counts of the topics of a topology."""

    def __init__(self, topology: StreamsTopology, count_of: CountOf) -> None:
        self._subtopologies = list(topology.subtopologies.values())
        self._count_of = count_of
        self._decided: dict[str, int] = {}
        repartition = [t for each in self._subtopologies for t in each.repartition_source_topics]
        self._fixed = {topic.name: topic.partitions for topic in repartition if topic.partitions}
        self._flexible = {topic.name for topic in repartition if not topic.partitions}

    def decide(self) -> None:
        """Compute the partition count of each internal topic."""
        self._decided = self._repartition_counts()
        for topic in {*self._fixed, *self._flexible}:
            if topic not in self._decided:
                _invalid(
                    "Failed to compute number of partitions for all repartition topics, because a "
                    "repartition source topic is never used as a sink topic."
                )
        for each in self._subtopologies:
            self._copartition(each)
        for each in self._subtopologies:
            most = max(map(self._count, sources_of(each)), default=None)
            if most is None:
                _invalid(f"No source topics found for subtopology {each.subtopology_id}")
            self._decided |= dict.fromkeys((t.name for t in each.state_changelog_topics), most)

    def _count(self, topic: str) -> int:
        """Return the partition count of a topic that exists or whose count is decided."""
        found = self._count_of(topic)
        return self._decided[topic] if found is None else found

    # -- repartition topics

    def _repartition_counts(self) -> dict[str, int]:
        """Compute the counts of repartition topics from the topics that their writers read.

        A subtopology may read what another one writes. As in Kafka, subtopologies are processed in
        order and repeatedly until all counts are decided. A subtopology is only processed again if
        one of its source topics was decided.
        """
        counts = dict(self._fixed)
        readers: dict[str, list[int]] = {}
        for place, each in enumerate(self._subtopologies):
            for topic in each.repartition_source_topics:
                readers.setdefault(topic.name, []).append(place)
        waiting = [(0, place) for place in range(len(self._subtopologies))]
        while waiting:
            pass_number, place = heapq.heappop(waiting)
            subtopology = self._subtopologies[place]
            new = [topic for topic in subtopology.repartition_sink_topics if topic not in counts]
            most = self._largest_source_count(subtopology, counts) if new else None
            if most is None:
                continue
            for name in new:
                counts[name] = most
                for reader in readers.get(name, ()):
                    heapq.heappush(
                        waiting, (pass_number if reader > place else pass_number + 1, reader)
                    )
        for subtopology in self._subtopologies:
            if any(topic not in counts for topic in subtopology.repartition_sink_topics):
                _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may be "
                    "loops in the topology that cannot be resolved."
                )
        return counts

    def _largest_source_count(
        self, subtopology: Subtopology, counts: Mapping[str, int]
    ) -> int | None:
        known = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        known += [self._count_of(topic) for topic in subtopology.source_topics]
        return max((count for count in known if count is not None), default=None)

    # -- copartitioned topics

    def _copartition(self, subtopology: Subtopology) -> None:
        for group in subtopology.copartition_groups:
            topics = {subtopology.source_topics[index] for index in group.source_topics}
            topics |= {
                subtopology.repartition_source_topics[index].name
                for index in group.repartition_source_topics
            }
            if topics:
                self._unify_counts(topics)

    def _unify_counts(self, topics: Collection[str]) -> None:
        """Give the repartition topics of a copartition group the same partition count."""
        own = {t: self._count(t) for t in topics if t in self._fixed or t in self._flexible}
        others = {topic: self._count(topic) for topic in topics if topic not in own}
        if others:
            count = _common_count(others)
        elif self._fixed:
            count = self._fixed_count(own)
        else:
            count = max(own.values())
            if not count:
                _invalid(
                    "All topics in the copartition group had undefined partition number: "
                    f"[{', '.join(own)}]"
                )
        for topic, known in own.items():
            self._decided[topic] = count
            if topic in self._fixed and known != count:
                raise _InvalidTopics(
                    INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{known}] of repartition topic [{topic}] doesn't match "
                    f"number of partitions [{count}] of the source topic.",
                )

    def _fixed_count(self, own: Mapping[str, int]) -> int:
        """Return the common count of all repartition topics with a fixed count, as in Kafka."""
        counts = {self._count(topic) for topic in self._fixed}
        if len(counts) > 1:
            raise _InvalidTopics(INCORRECTLY_PARTITIONED_TOPICS, _describe_mismatch(own))
        return counts.pop()

    # -- result

    def configure_subtopology(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        """Return a subtopology with all counts."""
        tasks = max(map(self._count, sources_of(subtopology)))
        if tasks <= 0:
            _invalid(f"Subtopology {subtopology.subtopology_id} has no tasks.")
        return ConfiguredSubtopology(
            tasks,
            frozenset(sources_of(subtopology)),
            tuple(sorted(set(subtopology.source_topics))),
            tuple(sorted(set(subtopology.repartition_sink_topics))),
            self._internal(subtopology.repartition_source_topics),
            self._internal(subtopology.state_changelog_topics),
        )

    def _internal(
        self, topics: Iterable[StreamsGroupTopologyValue.TopicInfo]
    ) -> tuple[ConfiguredInternalTopic, ...]:
        found = {
            topic.name: ConfiguredInternalTopic(
                topic.name,
                topic.partitions or self._decided[topic.name],
                topic.replication_factor,
                tuple((each.key, each.value) for each in topic.topic_configs),
            )
            for topic in topics
        }
        return tuple(found[name] for name in sorted(found))


def _missing_topics(
    topology: StreamsTopology, subtopologies: Mapping[str, ConfiguredSubtopology], count_of: CountOf
) -> dict[str, ConfiguredInternalTopic]:
    """Return the internal topics that do not exist.

    Raises:
        _InvalidTopics: An existing topic has a different partition count.
    """
    missing: dict[str, ConfiguredInternalTopic] = {}
    for each in subtopologies.values():
        missing |= {topic.name: topic for topic in each.repartition_sources}
        missing |= {topic.name: topic for topic in each.changelogs}
    for name in sorted(topology.required):
        found = count_of(name)
        topic = missing.get(name)
        if found is None or topic is None:
            continue
        del missing[name]
        if found != topic.partitions:
            raise _InvalidTopics(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected "
                f"{topic.partitions}, found {found}",
            )
    return missing


def _common_count(counts: Mapping[str, int]) -> int:
    found = set(counts.values())
    if len(found) > 1:
        raise _InvalidTopics(INCORRECTLY_PARTITIONED_TOPICS, _describe_mismatch(counts))
    return found.pop()


def _describe_mismatch(counts: Mapping[str, int]) -> str:
    pairs = ", ".join(f"{topic}={counts[topic]}" for topic in sorted(counts))
    return f"Following topics do not have the same number of partitions: [{{{pairs}}}]"


def _join_names(names: Collection[str]) -> str:
    shown = sorted(names)
    more = len(shown) - NAMES_SHOWN
    return ", ".join(shown[:NAMES_SHOWN]) + (f" and {more} additional topics" if more > 0 else "")


def _invalid(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
