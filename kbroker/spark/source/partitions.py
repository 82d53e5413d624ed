"""Which partitions a query reads, and their first and last offsets: the questions of the driver."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .client import made, reads_committed, settings
from .offsets import EARLIEST, LATEST, Offsets, named
from .offsets import TopicPartition as Partition
from .options import AtOffsets, AtTimestamps, Bound, Everywhere, OptionError, SourceOptions

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60
RETRY_BACKOFF_SECONDS = 0.2
LEADER_CHANGES = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,  # the client's own word where the metadata name no leader
}
"""What is said for a moment when a partition has another leader, or the same one anew."""
INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
"""A pattern does not select them, as with the connector; by name they can be read."""


class SourceError(Exception):
    """The cluster has not what was asked for; the message says what and where."""


class LeaderChange(SourceError):
    """A partition's leader is not the one that the client knows."""


class Partitions(ABC):
    """Answers about what a query reads."""

    place = "This server"

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @abstractmethod
    def _topics(self) -> Mapping[str, Collection[int]]:
        """The partitions that each topic has now."""

    @abstractmethod
    def _listed(self, asked: Mapping[Partition, int]) -> Offsets:
        """For each partition its `EARLIEST` or `LATEST` offset, or that of a timestamp (ms): of the
        first record that is not older, -1 when there is none."""

    def current(self) -> set[Partition]:
        """The partitions that the options select, as the cluster has them now.

        Raises:
            SourceError: a topic or partition that they name is not there; no broker answers.
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
                    f"{named(missing)}. Create it, or leave it out of 'assign'."
                )
            return set(wanted.assign)
        if wanted.subscribe:
            topics = list(wanted.subscribe)
        else:
            topics = [each for each in there if each not in INTERNAL and wanted.matches(each)]
        gone = [each for each in topics if each not in there]
        if gone:
            raise SourceError(
                f"{self.place} does not host this topic-partition (UnknownTopicOrPartition): there is "
                f"no topic {', '.join(gone)}, or none that this user may see. Create it, or leave it out of "
                "'subscribe', or let the user READ it."
            )
        return {(topic, number) for topic in topics for number in there[topic]}

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The first offset of each. Raises SourceError."""
        return self._listed(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[Partition], known: Mapping[Partition, int]) -> Offsets:
        """The offset after the last record of each; with read_committed, of the last stable one.

        Parameters: `known` are offsets that were read already. A broker that answers with less may
        only be behind, so it is asked again a few times.

        Raises:
            SourceError: no answer.
        """
        asked = dict.fromkeys(partitions, LATEST)
        for left in reversed(range(self.options.offset_tries)):
            found = self._listed(asked)
            if not left or all(found[each] >= known.get(each, 0) for each in found):
                break
            time.sleep(self.options.offset_retry_seconds)
        return found

    def resolve(self, bound: Bound, *, side: str) -> Offsets:
        """The offsets that an option means, of all partitions there are now.

        Raises:
            OptionError: it names other partitions, or a time that no record has.
            SourceError: no answer.
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
        """Replace `EARLIEST` and `LATEST` by what they are now."""
        asked = {each: at for each, at in offsets.items() if at in (EARLIEST, LATEST)}
        return offsets | self._listed(asked)

    def _at(self, timestamps: Offsets, or_latest: bool) -> Offsets:
        """The first offset of each partition that is not older."""
        found = self._listed(timestamps)
        unmatched = {each for each, offset in found.items() if offset < 0}
        if unmatched and not or_latest:
            topic, partition = min(unmatched)
            raise OptionError(
                f"No offset matched from request of topic-partition {topic}-{partition} and "
                f"timestamp {timestamps[topic, partition]}. With the option "
                "startingOffsetsByTimestampStrategy set to latest it would begin at the end."
            )
        return found | self._fixed(dict.fromkeys(unmatched, LATEST))


class WirePartitions(Partitions):
    """Answers from the cluster.

    Resource handling: it holds a client, which ends with the object.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Raises OptionError for client options that are not usable."""
        super().__init__(options)
        self.isolation = (
            IsolationLevel.READ_COMMITTED
            if reads_committed(options.kafka)
            else IsolationLevel.READ_UNCOMMITTED
        )
        self.last_error: str | None = None
        own = {"error_cb": self._on_error}
        self.client = made(AdminClient, settings(options.kafka) | own)

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error.str()

    def _topics(self) -> dict[str, Collection[int]]:
        """Raises SourceError.

        All topics are asked for: a question for one name may create it.
        """
        try:
            found = self.client.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error) from None
        return {name: range(len(topic.partitions)) for name, topic in found.topics.items()}

    def _listed(self, asked: Mapping[Partition, int]) -> Offsets:
        give_up_at = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._told(asked)
            except LeaderChange as error:
                if time.monotonic() > give_up_at:
                    raise
                logger.debug("%s; asking again", error)
            time.sleep(RETRY_BACKOFF_SECONDS)
            self._topics()  # the client asks the leaders that it has seen in the metadata

    def _told(self, asked: Mapping[Partition, int]) -> Offsets:
        if not asked:
            return {}
        answers = self.client.list_offsets(
            {TopicPartition(*each): _spec(at) for each, at in asked.items()},
            isolation_level=self.isolation,
            request_timeout=ANSWER_SECONDS,
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
        return kind(f"{servers} does not answer about {what}: {error.args[0].str()}{seen}")


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
