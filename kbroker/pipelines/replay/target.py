"""The topic that is written: what it is like, and writing to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Resource, describe_configs
from kbroker.client.errors import NoSuchTopic, error_code
from kbroker.client.producer import Producer
from kbroker.protocol.errors import ErrorCode

from .journal import Journal
from .partitioners import RecordsByPartition

SAVE_SECONDS = 1.0
"""How often progress is saved."""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that may be written; `partitions` 0: it does not exist.

    `retention_ms` is -1 for ever. `keeps_times` is False where the broker's time replaces that of
    records.
    """

    topic: str
    cluster_id: str | None
    partitions: int
    retention_ms: int = -1
    keeps_times: bool = True
    compacted: bool = False

    def remarks(self, oldest_ms: int, now_ms: int) -> list[str]:
        """What may surprise the one who writes records to it, of which the oldest is so old."""
        found = []
        if not self.keeps_times:
            found.append(f"{self.topic} has message.timestamp.type=LogAppendTime: times are lost")
        if 0 <= self.retention_ms < now_ms - oldest_ms:
            found.append(
                f"records older than {self.topic}'s retention.ms={self.retention_ms} will be deleted "
                f"soon; `kbroker topic alter-config {self.topic} --set retention.ms=-1`, or "
                "--timestamps now"
            )
        if self.compacted:
            found.append(f"{self.topic} is compacted: it refuses records without a key")
        return found


async def look_at(cluster: ClusterClient, topic: str) -> Target:
    """What a topic is like; it may be missing. Raises ClientError and KafkaError."""
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
    )


def missing(target: Target, partitions: int | None) -> NoSuchTopic:
    """The error for a target that does not exist; `partitions` is what the source has."""
    count = f" -p {partitions}" if partitions else ""
    return NoSuchTopic(
        f"topic {target.topic!r} does not exist; "
        f"`kbroker topic create {target.topic}{count}` makes it"
    )


class Writer:
    """Writes to the target, and keeps the journal if there is a file for it."""

    def __init__(self, producer: Producer, topic: str, journal: Journal, path: Path | None) -> None:
        self._producer = producer
        self._topic = topic
        self._journal = journal
        self._path = path
        self._saved_at = float("-inf")

    async def write(self, placed: RecordsByPartition) -> None:
        """Write records by partition. Raises ClientError and KafkaError."""
        by_partition = {(self._topic, index): records for index, records in placed.items()}
        self._journal.note(await self._producer.write(by_partition))

    def keep(self, positions: Mapping[str, int], *, at_once: bool = False) -> None:
        """Everything before these positions is written: save that, now or when it is time.

        Raises OSError.
        """
        now = time.monotonic()
        if self._path is None or not (at_once or now - self._saved_at >= SAVE_SECONDS):
            return
        self._saved_at = now
        self._journal.positions = dict(positions)
        self._journal.save(self._path)
