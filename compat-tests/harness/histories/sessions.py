"""Fetch sessions (KIP-227), with topics that are deleted and created again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch

from .history import Area
from .pair import Side
from .records import NOW_MS, named, produce

BY_NAME, BY_ID = (7, 11, 12), (13, 16, 18)
LAST_EPOCH = 2**31 - 1
# Seconds until all caches know that a topic was deleted.
DELETE_SECONDS = 0.5
SESSION_ID_NOT_FOUND = 70
# A topic and a partition.
Partition: TypeAlias = tuple[str, int]


class Sessions(Area):
    """A fetch session with some of the partitions of three topics."""

    weights: ClassVar[Mapping[str, int]] = {
        "produce": 35,
        "delete_records": 5,
        "replace_topic": 2,
        "fetch": 58,
    }
    lost_by_kafka = frozenset({"delete_records"})

    def begin(self) -> None:
        self.pair.times.add(NOW_MS)
        self._created = 0
        self.topics = [self._create() for _ in range(3)]
        self.ends: dict[Partition, int] = {}
        self.epoch = 0
        self.versions: tuple[int, ...] = ()

    def _create(self) -> str:
        self._created += 1
        name = f"{self.prefix}-{self._created}"
        self.pair.create(name, 2)
        return name

    def _partitions(self) -> list[Partition]:
        return [(topic, partition) for topic in self.topics for partition in (0, 1)]

    def produce(self) -> None:
        topic, partition = self.rng.choice(self._partitions())
        batch = encode_batch([Record(b"k", b"v" * self.rng.choice((1, 50, 400)), NOW_MS)])
        message = produce(topic, partition, 9, lambda side: batch)
        self.pair.ask(ApiKey.PRODUCE, 9, message)
        self.ends[topic, partition] = self.ends.get((topic, partition), 0) + 1

    def delete_records(self) -> None:
        key, (topic, partition) = ApiKey.DELETE_RECORDS, self.rng.choice(self._partitions())
        offset = self.rng.choice((-1, self.rng.randrange(self.ends.get((topic, partition), 0) + 1)))
        row = of(key, "Partition", partition_index=partition, offset=offset)
        topics = [of(key, "Topic", name=topic, partitions=[row])]
        self.pair.ask(key, 1, request(key, topics=topics, timeout_ms=5000))

    def replace_topic(self) -> None:
        key, position = ApiKey.DELETE_TOPICS, self.rng.randrange(3)
        name = self.topics[position]
        self.pair.ask(key, 5, request(key, topic_names=[name], timeout_ms=5000))
        time.sleep(DELETE_SECONDS)
        for partition in (0, 1):
            self.ends.pop((name, partition), None)
        if self.chance(0.5):
            self.pair.create(name, 2)
        else:
            self.topics[position] = self._create()

    def fetch(self) -> None:
        rng, is_full = self.rng, not self.epoch or self.chance(0.08)
        if not self.epoch:
            self.versions = rng.choice((BY_NAME, BY_ID))
        version = rng.choice((*BY_NAME, *BY_ID) if self.chance(0.05) else self.versions)
        epoch = 0 if is_full else self._epoch()
        every = self._partitions()
        some = rng.sample(every, rng.choice((1, 3, 6) if is_full else (0, 0, 1, 2, 4)))
        forgotten = [] if is_full else rng.sample(every, rng.choice((0, 0, 0, 1, 2)))
        if self.chance(0.05):
            some.append((self.topics[0], 9))
        offsets = {each: self._offset(each) for each in some}
        limit, level = rng.choice((1 << 20, 1 << 20, 100)), rng.choice((0, 1))
        keeps_id = not is_full or self.chance(0.9)
        key = ApiKey.FETCH

        def message(side: Side) -> Any:
            return request(
                key,
                max_bytes=1 << 20,
                max_wait_ms=0,
                min_bytes=0,
                isolation_level=level,
                session_id=side.own.get("session", 0) if keeps_id else 0,
                session_epoch=epoch,
                topics=self._rows(side, version, offsets, limit),
                forgotten_topics_data=self._forgotten(side, version, forgotten),
            )

        # Each broker chooses its own IDs of sessions.
        answers = self.pair.ask(key, version, message, ignores=("session_id",), retried=())
        self._learn(answers, epoch)

    def _epoch(self) -> int:
        if self.chance(0.93):
            return self.epoch
        return self.rng.choice((self.epoch + 1, max(1, self.epoch - 1), -1, LAST_EPOCH))

    def _offset(self, partition: Partition) -> int:
        end = self.ends.get(partition, 0)
        return self.rng.choice((0, end, end, self.rng.randrange(end + 2)))

    def _rows(
        self, side: Side, version: int, offsets: dict[Partition, int], limit: int
    ) -> list[Any]:
        key, rows = ApiKey.FETCH, dict[str, list[Any]]()
        for (topic, partition), offset in offsets.items():
            row = of(
                key,
                "Partition",
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=limit,
            )
            rows.setdefault(topic, []).append(row)
        return [
            of(key, "Topic", partitions=some, **named(side, topic, version >= 13, "topic"))
            for topic, some in rows.items()
        ]

    def _forgotten(self, side: Side, version: int, partitions: list[Partition]) -> list[Any]:
        rows: dict[str, list[int]] = {}
        for topic, partition in partitions:
            rows.setdefault(topic, []).append(partition)
        return [
            of(
                ApiKey.FETCH,
                "ForgottenTopic",
                partitions=some,
                **named(side, topic, version >= 13, "topic"),
            )
            for topic, some in rows.items()
        ]

    def _learn(self, answers: list[Any], epoch: int) -> None:
        if None in answers:
            self.epoch = 0
        elif answers[1].error_code:
            if answers[1].error_code == SESSION_ID_NOT_FOUND:
                self.epoch = 0
        else:
            for side, answer in zip(self.pair.sides, answers, strict=True):
                side.own["session"] = answer.session_id
            has_session = all(answer.session_id for answer in answers)
            self.epoch = epoch + 1 if has_session and epoch < LAST_EPOCH else int(has_session)

    def restart(self) -> None:
        super().restart()
        self.epoch = 0
