"""The log of a topic: produce, transactions, deleted records, fetch and offsets by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch

from .history import Area
from .pair import Side
from .records import LAST_SEQUENCE, TIMES, Producer, fetch, produce, some_records

PARTITIONS = (0, 1)
NO_LIMIT = 1 << 20
CODECS = (0, 0, 0, 1, 2, 3, 4)
# Offset specs of ListOffsets: latest, earliest, largest timestamp, and those of tiered storage.
SPECS = (-1, -2, -1, -2, -3, -4, -5, -6, -7)


class Log(Area):
    """One topic with two partitions, two idempotent and two transactional producers."""

    weights: ClassVar[Mapping[str, int]] = {
        "produce": 34,
        "end_transaction": 8,
        "initialise": 3,
        "delete_records": 5,
        "list_offsets": 15,
        "epoch_ends": 5,
        "describe_producers": 5,
        "describe_transactions": 4,
        "fetch": 20,
    }
    lost_by_kafka = frozenset({"delete_records"})

    def begin(self) -> None:
        rng = self.rng
        # Some records are older than the default retention, which brokers apply at any time.
        configs: dict[str, object] = {"retention_ms": -1}
        if self.chance(0.05):
            configs["message_timestamp_type"] = "LogAppendTime"
        if self.chance(0.3):
            configs["compression_type"] = rng.choice(("gzip", "lz4", "snappy", "uncompressed"))
        # Compressed sizes depend on the library, and decide what a limited fetch returns.
        codec = configs.get("compression_type", "uncompressed")
        self.has_same_sizes = codec == "uncompressed"
        if self.chance(0.1):
            configs["message_timestamp_before_max_ms"] = 20_000
        if self.chance(0.1):
            configs["message_timestamp_after_max_ms"] = 5000
        if self.chance(0.05):
            configs["max_message_bytes"] = 600
        self.pair.times.update(TIMES)
        self.pair.create(self.prefix, len(PARTITIONS), **configs)
        plain = [Producer(f"{self.prefix}-{number}") for number in (0, 1)]
        self.transactional = [
            Producer(f"{self.prefix}-t{number}", f"{self.prefix}-t{number}", self.chance(0.6))
            for number in (0, 1)
        ]
        self.producers = plain + self.transactional
        for producer in self.producers:
            producer.initialise(self.pair, rng)
        self.ends = [0, 0]
        self.first_sequence = LAST_SEQUENCE - rng.randrange(9) if self.chance(0.3) else 0
        # Partitions whose first records were deleted.
        self.truncated: set[int] = set()

    def end(self) -> None:
        for partition in PARTITIONS:
            for level in (0, 1):
                message = fetch(self.prefix, 12, {partition: 0}, 1 << 24, isolation_level=level)
                self.pair.ask(ApiKey.FETCH, 12, message, again=True)

    # -- producers

    def produce(self) -> None:
        partition = self.rng.choice(PARTITIONS)
        producer = self.rng.choice([*self.producers, None])
        count = self.rng.choice((1, 1, 2, 3, 7))
        codec = self.rng.choice(CODECS)
        if producer is None:
            self._append_plain(partition, some_records(self.rng, count), codec)
        elif producer.transactional_id is None:
            self._append_idempotent(producer, partition, count, codec)
        else:
            self._append_transactional(producer, partition, count, codec)

    def _append_plain(self, partition: int, records: list[Record], codec: int) -> None:
        version = self.rng.choice((7, 9, 11, 12, 13))
        batch = encode_batch(records, codec=codec)
        self._append(partition, len(records), version, lambda side: batch)

    def _append_idempotent(
        self, producer: Producer, partition: int, count: int, codec: int
    ) -> None:
        following = producer.next.get(partition, self.first_sequence)
        sequence, epochs, kind = following, 0, self.rng.random()
        sent = producer.sent.get(partition, [])[-7:]
        if kind < 0.2 and sent:  # a retry, possibly with another number of records
            sequence, count = self.rng.choice(sent)
            count = count if kind < 0.15 else max(1, count + self.rng.choice((-1, 1)))
        elif kind < 0.25:
            sequence = max(0, (following + self.rng.choice((1, 5, -1, -3))) & LAST_SEQUENCE)
        elif kind < 0.30:
            sequence, epochs = self.rng.choice(((following, 1), (following, 2), (0, 1)))
        records = some_records(self.rng, count)
        is_done = self._append(
            partition,
            count,
            self.rng.choice((7, 9, 11, 12, 13)),
            lambda side: producer.batch(side, records, sequence, epochs=epochs, codec=codec),
        )
        if is_done and not epochs:
            self._accepted(producer, partition, sequence, count)

    def _append_transactional(
        self, producer: Producer, partition: int, count: int, codec: int
    ) -> None:
        if not producer.is_v2 and partition not in producer.open:
            self._add_partitions(producer)
        sequence = producer.next.get(partition, 0)
        if sequence and partition in producer.open and self.chance(0.15):
            # Kafka remembers rejected batches and retries that would begin a transaction.
            sequence, count = self.rng.choice(producer.sent[partition][-7:])
        # One timestamp: kbroker and Kafka report different errors first.
        records = [Record(b"k", b"v", TIMES[0])] * count
        is_done = self._append(
            partition,
            count,
            self.rng.choice((12, 13) if producer.is_v2 else (9, 11)),
            lambda side: producer.batch(side, records, sequence, codec=codec),
            producer.transactional_id,
        )
        if is_done:
            producer.open.add(partition)
            self._accepted(producer, partition, sequence, count)

    def _accepted(self, producer: Producer, partition: int, sequence: int, count: int) -> None:
        sent = producer.sent.setdefault(partition, [])
        if (sequence, count) not in sent:
            sent.append((sequence, count))
            producer.next[partition] = (sequence + count) & LAST_SEQUENCE

    def _add_partitions(self, producer: Producer) -> None:
        key = ApiKey.ADD_PARTITIONS_TO_TXN

        def message(side: Side) -> Any:
            producer_id, epoch = side.producers[producer.name]
            topic = of(key, "Topic", name=self.prefix, partitions=list(PARTITIONS))
            return request(
                key,
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[topic],
            )

        self.pair.ask(key, 3, message)

    def _append(
        self,
        partition: int,
        count: int,
        version: int,
        batch: Any,
        transactional_id: str | None = None,
    ) -> bool:
        """Send a batch, and return True if both brokers accepted it."""
        acks = self.rng.choice((-1, -1, 1))
        message = produce(
            self.prefix, partition, version, batch, transactional_id=transactional_id, acks=acks
        )
        answers = self.pair.ask(ApiKey.PRODUCE, version, message)
        if any(answer is None for answer in answers):
            return False
        row = answers[1].responses[0].partition_responses[0]
        if not row.error_code:
            self.ends[partition] = max(self.ends[partition], row.base_offset + count)
        return not row.error_code

    def initialise(self) -> None:
        producer = self.rng.choice(self.producers)
        producer.initialise(self.pair, self.rng, resume=self.chance(0.5))

    def end_transaction(self) -> None:
        producer = self.rng.choice(self.transactional)
        key, is_committed = ApiKey.END_TXN, self.chance(0.5)
        version = 5 if producer.is_v2 else self.rng.choice((1, 3, 4))

        def message(side: Side) -> Any:
            producer_id, epoch = side.producers[producer.name]
            return request(
                key,
                transactional_id=producer.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=is_committed,
            )

        answers = self.pair.ask(key, version, message)
        producer.wait_for_markers(self.pair)
        if any(answer is None or answer.error_code for answer in answers):
            return
        producer.open.clear()
        if producer.is_v2:
            producer.learn(self.pair, answers)
            producer.forget()

    # -- other requests

    def delete_records(self) -> None:
        if any(producer.open for producer in self.transactional):
            return  # the last stable offset may differ
        partition = self.rng.choice(PARTITIONS)
        end = self.ends[partition]
        offset = self.rng.choice((0, 0, -1, -2, 1, end, end + 1, max(0, end - 1)))
        if self.chance(0.3):
            offset = self.rng.randrange(end + 3)
        if offset != 0:
            self.truncated.add(partition)
        key = ApiKey.DELETE_RECORDS
        row = of(key, "Partition", partition_index=partition, offset=offset)
        topic = of(key, "Topic", name=self.prefix, partitions=[row])
        self.pair.ask(
            key, self.rng.choice((0, 1, 2)), request(key, topics=[topic], timeout_ms=5000)
        )

    def list_offsets(self) -> None:
        key = ApiKey.LIST_OFFSETS
        spec = self.rng.choice((*SPECS, *TIMES, *(each + 1 for each in TIMES[:3])))
        if spec == -3 and self.truncated:
            return  # Kafka may return a deleted record
        epochs = (-1,) if self.pair.has_restarted else (-1, -1, -1, 0, 5)
        rows = [
            of(
                key,
                "Partition",
                partition_index=partition,
                timestamp=spec,
                current_leader_epoch=self.rng.choice(epochs),
            )
            for partition in PARTITIONS
        ]
        topic = of(key, "Topic", name=self.prefix, partitions=rows)
        message = request(
            key, replica_id=-1, isolation_level=self.rng.choice((0, 1)), topics=[topic]
        )
        self.pair.ask(key, self.rng.randrange(1, 12), message, again=True)

    def epoch_ends(self) -> None:
        key = ApiKey.OFFSET_FOR_LEADER_EPOCH
        known = (-1, 0, 99) if self.pair.has_restarted else (-1, 0, 0, 1, 2, 7)
        current = (-1,) if self.pair.has_restarted else (-1, -1, 0, 5)
        rows = [
            of(
                key,
                "Partition",
                partition=partition,
                leader_epoch=self.rng.choice(known),
                current_leader_epoch=self.rng.choice(current),
            )
            for partition in (*PARTITIONS, 7)
        ]
        topic = of(key, "Topic", topic=self.prefix, partitions=rows)
        message = request(key, replica_id=self.rng.choice((-1, -2)), topics=[topic])
        self.pair.ask(key, self.rng.randrange(2, 5), message, again=True)

    def describe_producers(self) -> None:
        key = ApiKey.DESCRIBE_PRODUCERS
        topic = of(key, "Topic", name=self.prefix, partition_indexes=list(PARTITIONS))
        self.pair.ask(key, 0, request(key, topics=[topic]), again=True)

    def describe_transactions(self) -> None:
        key = ApiKey.DESCRIBE_TRANSACTIONS
        names = [producer.transactional_id for producer in self.transactional]
        self.pair.ask(key, 0, request(key, transactional_ids=names), again=True)

    def fetch(self) -> None:
        rng, partition = self.rng, self.rng.choice(PARTITIONS)
        version = rng.choice((4, 5, 7, 11, 12, 13, 15, 16, 17, 18))
        end = self.ends[partition]
        offset = rng.choice((0, 0, end, end + 1, -1, rng.randrange(end + 3)))
        restarted = self.pair.has_restarted
        message = fetch(
            self.prefix,
            version,
            {partition: offset, 1 - partition: 0},
            rng.choice((0, 1, 100, 300, NO_LIMIT) if self.has_same_sizes else (NO_LIMIT,)),
            max_bytes=rng.choice(
                (0, 1, 100, 400, NO_LIMIT) if self.has_same_sizes else (NO_LIMIT,)
            ),
            isolation_level=rng.choice((0, 1)),
            current_leader_epoch=-1 if restarted else rng.choice((-1, -1, 0)),
            last_fetched_epoch=rng.choice((-1, -1, 0, 99) if restarted else (-1, -1, -1, 0, 3)),
        )
        self.pair.ask(ApiKey.FETCH, version, message, again=True)

    def restart(self) -> None:
        super().restart()
        for producer in self.producers:
            # Kafka recognises retries of the newest batch only.
            producer.sent = {key: batches[-1:] for key, batches in producer.sent.items()}
