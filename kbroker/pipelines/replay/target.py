"""Target topic of a replay: its properties, and the writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Resource, describe_configs
from kbroker.client.errors import NoSuchTopic, error_code
from kbroker.client.producer import Producer
from kbroker.pipelines.topic_ids import topic_id_of
from kbroker.protocol.errors import ErrorCode

from .journal import Journal, load
from .partitioners import RecordsByPartition

# Interval between saves of the progress, in seconds.
SAVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """Target topic.

    Attributes:
        topic: Name of the topic.
        cluster_id: ID of its cluster.
        partitions: Number of partitions; 0 if the topic does not exist.
        retention_ms: Retention in ms; -1 for no limit.
        keeps_times: False if the broker replaces timestamps (LogAppendTime).
        compacted: True if the topic is compacted.
        topic_id: Topic ID; empty if the brokers have no topic IDs.
    """

    topic: str
    cluster_id: str | None
    partitions: int
    retention_ms: int = -1
    keeps_times: bool = True
    compacted: bool = False
    topic_id: str = ""

    def remarks(self, oldest_ms: int, now_ms: int) -> list[str]:
        """Return warnings for a user who writes records as old as `oldest_ms`."""
        found = []
        if not self.keeps_times:
            found.append(
                f"{self.topic} has message.timestamp.type=LogAppendTime: timestamps are replaced"
            )
        if 0 <= self.retention_ms < now_ms - oldest_ms:
            found.append(
                f"records older than {self.topic}'s retention.ms={self.retention_ms} will be deleted "
                f"soon; run `kbroker topic alter-config {self.topic} --set retention.ms=-1`, or "
                "use --timestamps now"
            )
        if self.compacted:
            found.append(f"{self.topic} is compacted: it rejects records without a key")
        return found


async def describe_target(cluster: ClusterClient, topic: str) -> Target:
    """Look up a topic, which may not exist. Raises ClientError and KafkaError."""
    answer = await cluster.metadata([topic])
    (row,) = answer.topics
    code = error_code(row.error_code)
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Target(topic, answer.cluster_id, 0)
    (row,) = await cluster.topics([topic])
    listed = (await describe_configs(cluster, Resource.TOPIC, [topic]))[topic]
    settings = {each.name: each.value or "" for each in listed}
    policies = settings.get("cleanup.policy", "delete").split(",")
    return Target(
        topic,
        answer.cluster_id,
        len(row.partitions),
        int(settings.get("retention.ms") or -1) if "delete" in policies else -1,
        settings.get("message.timestamp.type") != "LogAppendTime",
        "compact" in policies,
        topic_id_of(row),
    )


def missing(target: Target, partitions: int | None) -> NoSuchTopic:
    """Return the error for a target that does not exist.

    Args:
        target: The target.
        partitions: Partition count of the source, if known.

    Returns:
        The error.
    """
    count = f" -p {partitions}" if partitions else ""
    return NoSuchTopic(
        f"topic {target.topic!r} does not exist; "
        f"create it with `kbroker topic create {target.topic}{count}`"
    )


class Writer:
    """Writer to the target that also saves the journal, if it has a file."""

    def __init__(self, producer: Producer, topic: str, journal: Journal, path: Path | None) -> None:
        self._producer = producer
        self._topic = topic
        self._journal = journal
        self._path = path
        self._saved_at = float("-inf")

    async def write(self, placed: RecordsByPartition) -> None:
        """Write records by partition. Raises ClientError and KafkaError."""
        by_partition = {(self._topic, index): records for index, records in placed.items()}
        self._journal.record_write(await self._producer.write(by_partition))

    def save(self, positions: Mapping[str, int], *, at_once: bool = False) -> None:
        """Save positions up to which everything is written, at once or after the save interval.

        Raises OSError.
        """
        now = time.monotonic()
        if self._path is None or not (at_once or now - self._saved_at >= SAVE_SECONDS):
            return
        self._saved_at = now
        self._journal.positions = dict(positions)
        self._journal.save(self._path)

    def save_shift(self, ms: int) -> None:
        """Save the shift of timestamps, before a record with a shifted timestamp is written.

        The rest of the file does not change: the sequences in memory may be ahead of the positions
        in the file, and a resumed run would then write the records between them again.

        Raises OSError.
        """
        self._journal.shift_ms = ms
        saved = None if self._path is None else load(self._path, {})
        if self._path is not None and saved is not None:
            saved.shift_ms = ms
            saved.save(self._path)
