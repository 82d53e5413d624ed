"""Seed files: records that are written to a broker before it is ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.errors import ClientError
from kbroker.client.list_offsets import LATEST, offsets_at
from kbroker.client.ndjson import BadLine, parse_line
from kbroker.client.producer import ANY_PARTITION, Producer
from kbroker.client.topics import Partition
from kbroker.cluster.topics import NewTopic
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import Record

from .errors import StartFailed
from .topic_creation import create

logger = logging.getLogger(__name__)

CHUNK_RECORDS = 1_000


async def write_seed(broker: Broker, path: str) -> int:
    """Write the records of a file in the format of `kbroker topic consume --json`.

    Missing topics are created. Topics with records are not changed, so that a restart does not
    write the records again.

    Returns:
        The number of records.

    Raises:
        StartFailed: The file cannot be read, or the records cannot be written.
    """
    # Connect in-process: the advertised addresses may not be reachable from this machine.
    async with open_cluster([broker.endpoint], direct=True, dial=broker.dial_inside) as cluster:
        try:
            return await _Seeding(broker, cluster, path).run()
        except (OSError, BadLine, KafkaError, ClientError) as error:
            raise StartFailed(f"--seed {path}: {error}") from None


class _Seeding:
    """Writer of one seed file."""

    def __init__(self, broker: Broker, cluster: ClusterClient, path: str) -> None:
        self._broker = broker
        self._cluster = cluster
        self._path = path
        self._producer = Producer(cluster)
        self._was_empty: dict[str, bool] = {}

    async def run(self) -> int:
        count = 0
        placed: dict[Partition, list[Record]] = {}
        for number, text in _lines(self._path):
            try:
                line = parse_line(text, time.time_ns() // 1_000_000)
            except BadLine as error:
                raise BadLine(f"line {number}: {error}") from None
            if line.topic is None:
                raise BadLine(f'line {number}: the topic is missing; add {{"topic": ...}}')
            if not await self._was_topic_empty(line.topic):
                continue
            wanted = ANY_PARTITION if line.partition is None else line.partition
            at = await self._producer.place(line.topic, line.record, wanted)
            placed.setdefault(at, []).append(line.record)
            count += 1
            if count % CHUNK_RECORDS == 0:
                await self._producer.write(placed)
                placed = {}
        await self._producer.write(placed)
        return count

    async def _was_topic_empty(self, name: str) -> bool:
        """Return True if a topic had no records before this seed file. Create a missing topic."""
        if name not in self._was_empty:
            topic = self._broker.node.cluster.topics.get(name)
            if topic is None:
                await create(self._broker, NewTopic(name), f"--seed {self._path}")
                self._was_empty[name] = True
            else:
                partitions = [(name, part.index) for part in topic.partitions]
                ends = await offsets_at(self._cluster, partitions, LATEST)
                self._was_empty[name] = not any(ends.values())
                if not self._was_empty[name]:
                    logger.info("--seed: topic %s already has records and is not changed", name)
        return self._was_empty[name]


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of each non-empty line of a file."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line
