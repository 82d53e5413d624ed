"""Transactions: one transactional ID with current, old and wrong epochs, and a group's offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record

from .history import Area
from .pair import Side
from .records import NOW_MS, TIMEOUT_MS, Producer, fetch, produce

PARTITIONS = (0, 1, 2)
SHORT_TIMEOUT_MS = 1200
STATES = ([], ["Ongoing"], ["Empty", "CompleteAbort"], ["CompleteCommit"], ["Dead"])


class Transactions(Area):
    """A topic with three partitions and a transactional producer."""

    weights: ClassVar[Mapping[str, int]] = {
        "produce": 30,
        "commit_offsets": 12,
        "end_transaction": 20,
        "initialise": 10,
        "describe": 6,
        "list": 6,
        "fetch_offsets": 9,
        "read_ends": 5,
        "time_out": 3,
        "change_version": 2,
        "delete_group": 2,
    }

    def begin(self) -> None:
        self.pair.times.add(NOW_MS)
        self.pair.create(self.prefix, len(PARTITIONS))
        self.group = f"{self.prefix}-group"
        self.producer = Producer(self.prefix, self.prefix, self.chance(0.6))
        self.timeout_ms = SHORT_TIMEOUT_MS if self.chance(0.25) else TIMEOUT_MS
        self._initialise(0, -1, self.timeout_ms)

    def end(self) -> None:
        self._initialise(0, -1, self.timeout_ms)
        for partition in PARTITIONS:
            for level in (0, 1):
                message = fetch(self.prefix, 12, {partition: 0}, 1 << 24, isolation_level=level)
                self.pair.ask(ApiKey.FETCH, 12, message, again=True)

    # -- the producer

    def initialise(self) -> None:
        timeout_ms = self.timeout_ms
        if self.chance(0.1):
            timeout_ms = self.rng.choice((900_001, 0, 30_000))
        if self.chance(0.3):
            self._initialise(self.rng.randrange(6), -1, timeout_ms)
        else:
            self._initialise(self.rng.choice((3, 4, 5)), self._who(), timeout_ms)

    def _initialise(self, version: int, who: Any, timeout_ms: int) -> None:
        key = ApiKey.INIT_PRODUCER_ID

        def message(side: Side) -> Any:
            known = (-1, -1) if who == -1 else self._identity(side, who)
            return request(
                key,
                transactional_id=self.prefix,
                transaction_timeout_ms=timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
            )

        self._learn(self.pair.ask(key, version, message))

    def _learn(self, answers: list[Any]) -> None:
        """Take a new ID or epoch, and keep the old one to use it when it is outdated."""
        before = [side.producers.get(self.prefix) for side in self.pair.sides]
        if not self.producer.learn(self.pair, answers):
            return
        self.producer.forget()
        for side, old in zip(self.pair.sides, before, strict=True):
            if old not in (None, side.producers[self.prefix]):
                side.own["previous"] = old

    def _who(self) -> tuple[bool, int]:
        """Choose the current or the previous ID and epoch, and a change of the epoch."""
        shift = 0 if self.chance(0.85) else self.rng.choice((-1, -1, 1, -2))
        return self.chance(0.08), shift

    def _identity(self, side: Side, who: tuple[bool, int]) -> tuple[int, int]:
        is_old, shift = who
        current = side.producers[self.prefix]
        producer_id, epoch = side.own.get("previous", current) if is_old else current
        return producer_id, max(-1, min(32767, epoch + shift))

    def _fields(self, side: Side, who: tuple[bool, int], prefix: str = "") -> dict[str, Any]:
        producer_id, epoch = self._identity(side, who)
        return {
            f"{prefix}transactional_id": self.prefix,
            f"{prefix}producer_id": producer_id,
            f"{prefix}producer_epoch": epoch,
        }

    def change_version(self) -> None:
        self.producer.is_v2 = not self.producer.is_v2

    def produce(self) -> None:
        partition, who, producer = self.rng.choice(PARTITIONS), self._who(), self.producer
        if not producer.is_v2 and self.chance(0.9):
            self._add_partition(partition)
        sequence = producer.next.get(partition, 0)

        def batch(side: Side) -> bytes:
            epoch = self._identity(side, who)[1] - side.producers[self.prefix][1]
            records = [Record(b"k", b"v", NOW_MS)]
            return producer.batch(side, records, sequence, epochs=epoch)

        version = self.rng.choice((12, 13) if producer.is_v2 else (9, 11))
        answers = self.pair.ask(
            ApiKey.PRODUCE,
            version,
            produce(self.prefix, partition, version, batch, transactional_id=self.prefix),
        )
        if None not in answers:
            row = answers[1].responses[0].partition_responses[0]
            producer.next[partition] = sequence + (not row.error_code)

    def _add_partition(self, partition: int) -> None:
        key, prefix = ApiKey.ADD_PARTITIONS_TO_TXN, "v3_and_below_"
        topic = of(key, "Topic", name=self.prefix, partitions=[partition])
        self.pair.ask(
            key,
            self.rng.randrange(4),
            lambda side: request(
                key, v3_and_below_topics=[topic], **self._fields(side, (False, 0), prefix)
            ),
        )

    def commit_offsets(self) -> None:
        if not self.producer.is_v2 and self.chance(0.9):
            key = ApiKey.ADD_OFFSETS_TO_TXN
            self.pair.ask(
                key,
                self.rng.randrange(5),
                lambda side: request(key, group_id=self.group, **self._fields(side, (False, 0))),
            )
        commit = ApiKey.TXN_OFFSET_COMMIT
        version = self.rng.choice((5, 6) if self.producer.is_v2 else range(5))
        who, offset, partition = self._who(), self.rng.randrange(100), self.rng.choice(PARTITIONS)

        def message(side: Side) -> Any:
            row = of(commit, "Partition", partition_index=partition, committed_offset=offset)
            names = {"topic_id": side.topics[self.prefix]} if version >= 6 else {}
            topic = of(commit, "Topic", name=self.prefix, partitions=[row], **names)
            return request(commit, group_id=self.group, topics=[topic], **self._fields(side, who))

        self.pair.ask(commit, version, message)

    def end_transaction(self) -> None:
        key, who, is_committed = ApiKey.END_TXN, self._who(), self.chance(0.6)
        version = 5 if self.producer.is_v2 else self.rng.randrange(5)
        answers = self.pair.ask(
            key,
            version,
            lambda side: request(key, committed=is_committed, **self._fields(side, who)),
        )
        self.producer.wait_for_markers(self.pair)
        if version == 5:
            self._learn(answers)

    def time_out(self) -> None:
        """Wait until the coordinator has aborted an open transaction, if its timeout is short."""
        if self.timeout_ms == SHORT_TIMEOUT_MS:
            time.sleep(SHORT_TIMEOUT_MS / 1000 + 0.6)

    def restart(self) -> None:
        super().restart()
        # kbroker starts faster, so it might abort an open transaction before Kafka does.
        self.time_out()

    # -- reads

    def describe(self) -> None:
        key = ApiKey.DESCRIBE_TRANSACTIONS
        self.pair.ask(key, 0, request(key, transactional_ids=[self.prefix]), again=True)
        self._describe_producers()

    def _describe_producers(self) -> None:
        key = ApiKey.DESCRIBE_PRODUCERS
        topic = of(key, "Topic", name=self.prefix, partition_indexes=list(PARTITIONS))
        self.pair.ask(key, 0, request(key, topics=[topic]), again=True)

    def list(self) -> None:
        key, states, filters = ApiKey.LIST_TRANSACTIONS, self.rng.choice(STATES), self.chance(0.4)

        def message(side: Side) -> Any:
            return request(
                key,
                state_filters=states,
                transactional_id_pattern=f"{self.prefix}.*",
                producer_id_filters=[side.producers[self.prefix][0]] if filters else [],
            )

        self.pair.ask(key, 2, message, again=True)

    def fetch_offsets(self) -> None:
        key = ApiKey.OFFSET_FETCH
        for is_stable in (False, True):
            topics = [of(key, "Topic", name=self.prefix, partition_indexes=list(PARTITIONS))]
            row = of(key, "Group", group_id=self.group, topics=topics if is_stable else None)
            message = request(key, require_stable=is_stable, groups=[row])
            self.pair.ask(key, 9, message, again=True)

    def read_ends(self) -> None:
        key = ApiKey.LIST_OFFSETS
        for level in (0, 1):
            rows = [of(key, "Partition", partition_index=each, timestamp=-1) for each in PARTITIONS]
            topic = of(key, "Topic", name=self.prefix, partitions=rows)
            message = request(key, replica_id=-1, isolation_level=level, topics=[topic])
            self.pair.ask(key, 5, message, again=True)

    def delete_group(self) -> None:
        key = ApiKey.DELETE_GROUPS
        self.pair.ask(key, 2, request(key, groups_names=[self.group]))
