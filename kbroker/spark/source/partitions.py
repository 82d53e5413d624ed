"""Partitions that a query reads and their offsets, as queried by the driver."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .client import create_client, reads_committed, settings
from .offsets import EARLIEST, LATEST, Offsets, named
from .offsets import TopicPartition as Partition
from .options import AtOffsets, AtTimestamps, Bound, Everywhere, OptionError, SourceOptions

logger = logging.getLogger(__name__)

# Timeout of requests to the cluster, in seconds.
REQUEST_SECONDS = 60
# Pause before a retry after a leader change, in seconds.
RETRY_BACKOFF_SECONDS = 0.2
# Transient errors while a partition gets a new leader.
LEADER_CHANGES = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,  # librdkafka's error if the metadata contains no leader
}
# Internal topics: not matched by subscribePattern, as in Spark's connector, but readable by name.
INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}


class SourceError(Exception):
    """The cluster lacks a topic or record of the query, or does not respond."""


class LeaderChange(SourceError):
    """The client does not know the current leader of a partition."""


class Partitions(ABC):
    """Source of partition metadata for a query."""

    # Subject of the error messages for missing partitions. For a cluster, it completes the text of
    # Kafka's error; for files, it is their path.
    place = "This server"

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @abstractmethod
    def _topics(self) -> Mapping[str, Collection[int]]:
        """Return the current partitions of each topic."""

    @abstractmethod
    def _list_offsets(self, specs: Mapping[Partition, int]) -> Offsets:
        """Return the requested offset of each partition.

        Args:
            specs: For each partition `EARLIEST`, `LATEST` or a timestamp (ms).

        Returns:
            For a timestamp, the offset of the first record at or after it, or -1 if there is no
                such record.
        """

    def current(self) -> set[Partition]:
        """Return the partitions that the options select and that exist now.

        Raises:
            SourceError: A named topic or partition does not exist, or no broker responds.
        """
        wanted = self.options
        there = self._topics()
        if wanted.assign:
            missing = {
                (topic, each) for topic, each in wanted.assign if each not in there.get(topic, ())
            }
            if missing:
                raise SourceError(
                    f"{self.place} does not host this topic-partition (UnknownTopicOrPartition): "
                    f"{named(missing)}. Create it, or remove it from 'assign'."
                )
            return set(wanted.assign)
        if wanted.subscribe:
            topics = list(wanted.subscribe)
        else:
            topics = [each for each in there if each not in INTERNAL and wanted.matches(each)]
        gone = [each for each in topics if each not in there]
        if gone:
            raise SourceError(
                f"{self.place} does not host this topic-partition (UnknownTopicOrPartition): topic "
                f"{', '.join(gone)} does not exist, or this user may not see it. Create it, remove "
                "it from 'subscribe', or grant the user READ."
            )
        return {(topic, number) for topic in topics for number in there[topic]}

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the first offset of each partition. Raises SourceError."""
        return self._list_offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[Partition], known: Mapping[Partition, int]) -> Offsets:
        """Return the end offset of each partition; with read_committed, the last stable offset.

        A broker that returns less than a known offset may just be lagging. In that case, the request
        is repeated until `offset_tries` requests were sent, and the last response is returned.

        Args:
            partitions: Partitions to query.
            known: Offsets that the query has already read.

        Returns:
            The end offset of each partition.

        Raises:
            SourceError: No broker responds.
        """
        specs = dict.fromkeys(partitions, LATEST)
        for left in reversed(range(self.options.offset_tries)):
            found = self._list_offsets(specs)
            if not left or all(found[each] >= known.get(each, 0) for each in found):
                break
            time.sleep(self.options.offset_retry_seconds)
        return found

    def resolve(self, bound: Bound, *, side: str) -> Offsets:
        """Return the offsets that an option stands for, for all current partitions.

        Args:
            bound: Parsed option.
            side: "starting" or "ending", for messages.

        Returns:
            The offset of each partition.

        Raises:
            OptionError: The option lists other partitions, or a timestamp after the last record.
            SourceError: No broker responds.
        """
        partitions = self.current()
        match bound:
            case Everywhere(offset):
                return self._fixed(dict.fromkeys(partitions, offset))
            case AtOffsets(offsets):
                _check_all_named(offsets, partitions, f"{side}Offsets")
                return self._fixed(offsets)
            case AtTimestamps(dict() as timestamps, or_latest):
                _check_all_named(timestamps, partitions, f"{side}OffsetsByTimestamp")
                return self._at(timestamps, or_latest)
            case AtTimestamps(int() as timestamp, or_latest):
                return self._at(dict.fromkeys(partitions, timestamp), or_latest)
        raise AssertionError(bound)

    def _fixed(self, offsets: Offsets) -> Offsets:
        """Replace `EARLIEST` and `LATEST` by the current offsets."""
        specs = {each: at for each, at in offsets.items() if at in (EARLIEST, LATEST)}
        return offsets | self._list_offsets(specs)

    def _at(self, timestamps: Offsets, or_latest: bool) -> Offsets:
        """Return the first offset of each partition at or after its timestamp."""
        found = self._list_offsets(timestamps)
        unmatched = {each for each, offset in found.items() if offset < 0}
        if unmatched and not or_latest:
            topic, partition = min(unmatched)
            raise OptionError(
                f"No offset matched from request of topic-partition {topic}-{partition} and "
                f"timestamp {timestamps[topic, partition]}. To start at the end of such "
                "partitions, set startingOffsetsByTimestampStrategy to latest."
            )
        return found | self._fixed(dict.fromkeys(unmatched, LATEST))


class WirePartitions(Partitions):
    """Partition metadata from the cluster, with one admin client."""

    def __init__(self, options: SourceOptions) -> None:
        """Create the client. Raises OptionError for invalid client options."""
        super().__init__(options)
        self.isolation = (
            IsolationLevel.READ_COMMITTED
            if reads_committed(options.kafka)
            else IsolationLevel.READ_UNCOMMITTED
        )
        self.last_error: str | None = None
        own = {"error_cb": self._on_error}
        self.client = create_client(AdminClient, settings(options.kafka) | own)

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error.str()

    def _topics(self) -> dict[str, Collection[int]]:
        """Return the partitions of all topics. Raises SourceError.

        All topics are requested, because a request for a single name may create the topic.
        """
        try:
            found = self.client.list_topics(timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error) from None
        return {name: range(len(topic.partitions)) for name, topic in found.topics.items()}

    def _list_offsets(self, specs: Mapping[Partition, int]) -> Offsets:
        give_up_at = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return self._list_offsets_once(specs)
            except LeaderChange as error:
                if time.monotonic() > give_up_at:
                    raise
                logger.debug("%s; retrying", error)
            time.sleep(RETRY_BACKOFF_SECONDS)
            self._topics()  # refreshes the leaders in the client's metadata

    def _list_offsets_once(self, specs: Mapping[Partition, int]) -> Offsets:
        if not specs:
            return {}
        answers = self.client.list_offsets(
            {TopicPartition(*each): _spec(at) for each, at in specs.items()},
            isolation_level=self.isolation,
            request_timeout=REQUEST_SECONDS,
        )
        found: Offsets = {}
        for each, answer in answers.items():
            try:
                found[each.topic, each.partition] = answer.result().offset
            except KafkaException as error:
                raise self._unreachable(error, f"{each.topic}-{each.partition}") from None
        return found

    def _unreachable(self, error: KafkaException, what: str = "topics") -> SourceError:
        servers = self.options.kafka.get("bootstrap.servers")
        seen = f" ({self.last_error})" if self.last_error else ""
        kind = LeaderChange if error.args[0].code() in LEADER_CHANGES else SourceError
        return kind(f"{servers}: request for {what} failed: {error.args[0].str()}{seen}")


def _spec(at: int) -> OffsetSpec:
    if at == EARLIEST:
        return OffsetSpec.earliest()
    return OffsetSpec.latest() if at == LATEST else OffsetSpec.for_timestamp(at)


def _check_all_named(given: Offsets, partitions: set[Partition], option: str) -> None:
    if set(given) != partitions:
        raise OptionError(
            f"If {option} contains specific offsets, you must specify all TopicPartitions. Use -1 "
            f"for latest, -2 for earliest. Specified: {named(given)}. Assigned: {named(partitions)}"
        )
