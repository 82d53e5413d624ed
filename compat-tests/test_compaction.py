"""Random histories, compacted by kbroker and by Apache Kafka 4.4, keep the same records.

Transactions commit and abort, keys are deleted, producers start and stop, and both brokers are
killed between passes. The remaining records are also compared with a dictionary of the latest
committed values. `KBROKER_COMPAT_HISTORIES` sets the number of histories.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.admin_calls import of, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.raw import NoAnswer, RawConnection

from kbroker.client.consumer import is_aborted_batch
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch, iter_headers, read_records
from tests.storage.compaction_history import Clean, CommittedValues, End, Put, Roll, Step, steps

HISTORIES = int(os.environ.get("KBROKER_COMPAT_HISTORIES", "6"))
SEED = int(os.environ.get("KBROKER_SEED") or random.SystemRandom().randrange(10**9))
STEPS = 120
CHUNK_STEPS = 12
# Pause between two chunks, in which both cleaners work.
CHUNK_SECONDS = 0.8
KILL_CHANCE = 0.1
DELETE_RETENTION_MS = 300
SEGMENT_MS = 1000
SETTLE_ROUNDS = 40
SETTLE_SECONDS = 0.5
RETRY_TIMEOUT_SECONDS = 60
# Key of the records that start new segments at the end.
FILLER = b"filler"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
PROPERTIES = {
    "log.cleaner.backoff.ms": "100",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
}
# Error codes of unavailable leaders and coordinators, and of transactions that are still ending.
RETRIABLE = {3, 5, 6, 14, 15, 16, 51}


@dataclass
class Producer:
    """A transactional producer with the version of its transaction protocol."""

    name: str
    version: int
    producer_id: int
    epoch: int
    sequence: int = 0
    has_begun: bool = False


@dataclass
class Side:
    """One of the two brokers."""

    broker: Broker
    producers: dict[str, Producer] = field(default_factory=dict)
    connection: RawConnection | None = None

    def ask(self, key: ApiKey, version: int, message: Any, error_of: Callable[[Any], int]) -> Any:
        """Send a request until the error is not retriable: a killed broker needs time to start."""
        deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
        while True:
            try:
                self.connection = self.connection or RawConnection(self.broker.address)
                answer = self.connection.ask(key, version, message)
                if error_of(answer) not in RETRIABLE:
                    assert not error_of(answer), (self.broker.name, key, answer)
                    return answer
            except (NoAnswer, OSError):
                self.close()
            assert time.monotonic() < deadline, f"{self.broker.name} is not ready for {key}"
            time.sleep(0.05)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def restart(self) -> None:
        self.close()
        self.broker.kill()
        self.broker.start()

    def create(self, name: str) -> None:
        key = ApiKey.CREATE_TOPICS
        configs = [of(key, "Config", name=key_, value=it) for key_, it in TOPIC_CONFIGS.items()]
        topic = of(key, "Topic", name=name, num_partitions=1, replication_factor=1, configs=configs)
        self.ask(
            key,
            7,
            request(key, topics=[topic], timeout_ms=5000),
            lambda it: it.topics[0].error_code,
        )

    def producer(self, name: str, version: int) -> Producer:
        if name not in self.producers:
            find = request(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[name])
            self.ask(ApiKey.FIND_COORDINATOR, 4, find, lambda it: it.coordinators[0].error_code)
            init = request(
                ApiKey.INIT_PRODUCER_ID,
                transactional_id=name,
                transaction_timeout_ms=600_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            made = self.ask(ApiKey.INIT_PRODUCER_ID, 4, init, _error)
            self.producers[name] = Producer(name, version, made.producer_id, made.producer_epoch)
        return self.producers[name]

    def begin(self, topic: str, producer: Producer) -> None:
        if producer.version == 1 and not producer.has_begun:
            key = ApiKey.ADD_PARTITIONS_TO_TXN
            message = request(
                key,
                v3_and_below_transactional_id=producer.name,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[of(key, "Topic", name=topic, partitions=[0])],
            )
            self.ask(key, 3, message, _error_of_added)
        producer.has_begun = True

    def produce(
        self,
        topic: str,
        pairs: list[tuple[bytes, bytes | None]],
        time_ms: int,
        producer: Producer | None,
    ) -> int:
        """Write one batch and return its base offset."""
        fields: dict[str, Any] = {}
        if producer is not None:
            self.begin(topic, producer)
            fields = {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "transactional": True,
            }
            producer.sequence += len(pairs)
        data = encode_batch([Record(key, value, time_ms) for key, value in pairs], **fields)
        key = ApiKey.PRODUCE
        row = of(key, "Partition", index=0, records=data)
        message = request(
            key,
            transactional_id=producer.name if producer else None,
            acks=-1,
            timeout_ms=5000,
            topic_data=[of(key, "Topic", name=topic, partition_data=[row])],
        )
        version = 12 if producer is not None and producer.version == 2 else 11
        answer = self.ask(key, version, message, _error_of_produced)
        return int(answer.responses[0].partition_responses[0].base_offset)

    def end(self, producer: Producer, *, commit: bool) -> None:
        message = request(
            ApiKey.END_TXN,
            transactional_id=producer.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        answer = self.ask(ApiKey.END_TXN, 5 if producer.version == 2 else 4, message, _error)
        if producer.version == 2:
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
            producer.sequence = 0
        producer.has_begun = False

    def committed(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return key and value of every record that a read_committed consumer gets."""
        found: list[tuple[bytes | None, bytes | None]] = []
        offset = 0
        while True:
            row = self._fetch(topic, offset)
            aborted: dict[int, list[int]] = {}
            for each in row.aborted_transactions or ():
                aborted.setdefault(each.producer_id, []).append(each.first_offset)
            records, before = memoryview(row.records or b""), offset
            for position, header in iter_headers(records):
                batch = records[position : position + header.size]
                if not is_aborted_batch(header, batch, aborted) and not header.is_control:
                    found += [
                        (it.key, it.value) for it in read_records(batch) if it.offset >= before
                    ]
                offset = max(offset, header.next_offset)
            if offset >= row.last_stable_offset or offset == before:
                return found

    def _fetch(self, topic: str, offset: int) -> Any:
        key = ApiKey.FETCH
        partition = of(
            key, "Partition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        message = request(
            key,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 24,
            isolation_level=1,
            topics=[of(key, "Topic", topic=topic, partitions=[partition])],
        )
        answer = self.ask(key, 11, message, lambda it: it.responses[0].partitions[0].error_code)
        return answer.responses[0].partitions[0]


def _error(answer: Any) -> int:
    return int(answer.error_code)


def _error_of_added(answer: Any) -> int:
    (topic,) = answer.results_by_topic_v3_and_below
    return int(topic.results_by_partition[0].partition_error_code)


def _error_of_produced(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


class History:
    """One history, in its own topic on both brokers."""

    def __init__(self, seed: int, sides: tuple[Side, Side]) -> None:
        random_ = random.Random(seed)
        self.seed = seed
        self.sides = sides
        self.topic = f"history-{seed}"
        self.versions = random_.choice([(1,), (2,), (1, 2)])
        self.steps: Iterator[Step] = steps(random_, STEPS)
        self.truths = (CommittedValues(), CommittedValues())
        # Later than the markers' times, so that markers do not start segments.
        self.time_ms = int(time.time() * 1000) + 120_000
        for side in sides:
            side.create(self.topic)

    def chunk(self) -> bool:
        """Run some steps. Return False at the end of the history."""
        for number, step in enumerate(self.steps):
            match step:
                case Put():
                    self._put(step)
                case End():
                    self._end(step)
                case Roll() | Clean():
                    self.time_ms += 2 * SEGMENT_MS
                case _:
                    pass
            if number == CHUNK_STEPS:
                return True
        return False

    def _producer(self, side: Side, number: int) -> Producer | None:
        if not number:
            return None
        version = self.versions[number % len(self.versions)]
        return side.producer(f"{self.topic}-{number}", version)

    def _put(self, step: Put) -> None:
        self.time_ms += 1
        for side, truth in zip(self.sides, self.truths, strict=True):
            producer = self._producer(side, step.producer)
            truth.put(step, side.produce(self.topic, list(step.pairs), self.time_ms, producer))

    def _end(self, step: End) -> None:
        for side, truth in zip(self.sides, self.truths, strict=True):
            producer = self._producer(side, step.producer)
            assert producer is not None
            side.end(producer, commit=step.commit)
            truth.end(step)

    def fill(self) -> None:
        """Start a new segment."""
        self.time_ms += 2 * SEGMENT_MS
        for side in self.sides:
            side.produce(self.topic, [(FILLER, b"%d" % self.time_ms)], self.time_ms, None)

    def left(self) -> list[list[tuple[bytes | None, bytes | None]]]:
        """Return each broker's remaining records, without the records that start segments."""
        return [
            # A tombstone may still be stored beside the value that it deletes.
            sorted((pair for pair in side.committed(self.topic) if pair[0] != FILLER), key=repr)
            for side in self.sides
        ]

    def expected(self) -> list[list[tuple[bytes, bytes]]]:
        return [sorted(truth.latest().items(), key=repr) for truth in self.truths]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    brokers = (
        KbrokerBroker(tmp_path / "kbroker", PROPERTIES),
        FixedQuorumBroker(tmp_path / "apache", PROPERTIES),
    )
    ours, theirs = (Side(broker) for broker in brokers)
    try:
        for broker in brokers:
            broker.start()
        yield ours, theirs
    finally:
        for side in (ours, theirs):
            side.close()
            side.broker.kill()


def test_both_cleaners_keep_latest_committed_values(
    sides: tuple[Side, Side], capsys: pytest.CaptureFixture[str]
) -> None:
    random_ = random.Random(SEED)
    histories = [History(SEED + number, sides) for number in range(HISTORIES)]
    going, kills = list(histories), 0
    while going:
        going = [history for history in going if history.chunk()]
        time.sleep(CHUNK_SECONDS)
        if random_.random() < KILL_CHANCE or not kills:
            kills += 1
            for side in sides:
                side.restart()
    for _ in range(SETTLE_ROUNDS):
        for history in histories:
            history.fill()
        time.sleep(SETTLE_SECONDS)
        if all(history.left() == history.expected() for history in histories):
            break
    with capsys.disabled():
        kept = sum(len(history.expected()[0]) for history in histories)
        print(
            f"\nfigures: {HISTORIES} histories from seed {SEED}, {kills} kills, {kept} values kept"
        )
    for history in histories:
        assert history.left() == history.expected(), f"KBROKER_SEED={history.seed}"
