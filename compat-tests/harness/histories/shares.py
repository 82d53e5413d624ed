"""Share groups: acquired and acknowledged records, expired locks, and offsets of the group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch

from .history import Area
from .pair import Differs, Side
from .records import NOW_MS, produce

FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
BEAT = ApiKey.SHARE_GROUP_HEARTBEAT
GROUP_RESOURCE = 32
JOINED, LEFT = 0, -1
# Seconds until a config of a group, or the end of a session, is in effect.
SETTLE_SECONDS = 0.5
SHORT_LOCK_MS, LONG_LOCK_MS = "1000", "60000"
# Seconds until locks of SHORT_LOCK_MS have expired and the new states are stored.
LOCK_SECONDS = 2.5
JOIN_SECONDS = 20.0
# Maximum wait of a fetch. With a shorter one, Kafka may respond before it has read.
WAIT_MS = 40
GAP, ACCEPT, RELEASE, REJECT = 0, 1, 2, 3
NOT_RELEASED = (ACCEPT, ACCEPT, REJECT, GAP)


class Shares(Area):
    """A share group with one member that fetches from one partition at a time."""

    weights: ClassVar[Mapping[str, int]] = {
        "produce": 25,
        "fetch": 30,
        "acknowledge": 10,
        "end_session": 6,
        "wait_for_locks": 4,
        "describe_offsets": 8,
        "alter_offsets": 6,
        "delete_offsets": 3,
        "leave_or_join": 4,
    }

    def begin(self) -> None:
        self.pair.times.add(NOW_MS)
        self.pair.create(self.prefix, 2)
        self.group = f"{self.prefix}-group"
        self.member = str(UUID(int=self.rng.getrandbits(128)))
        self.ends = [0, 0]
        self.lock_ms = self.rng.choice((SHORT_LOCK_MS, LONG_LOCK_MS))
        self._configure()
        self._append(0, 3)
        self._join()

    def end(self) -> None:
        self.describe_offsets()
        if self.has_joined:
            self._leave()
        self._offsets_of_empty_group()

    def _configure(self) -> None:
        configs = {
            "share.auto.offset.reset": self.rng.choice(("earliest", "earliest", "latest")),
            "share.record.lock.duration.ms": self.lock_ms,
        }
        if self.chance(0.4):
            configs["share.isolation.level"] = "read_committed"
        if self.chance(0.5):
            configs["share.delivery.count.limit"] = self.rng.choice(("2", "3"))
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        rows = [
            of(key, "Config", name=name, config_operation=0, value=value)
            for name, value in configs.items()
        ]
        resource = of(
            key, "Resource", resource_type=GROUP_RESOURCE, resource_name=self.group, configs=rows
        )
        self.pair.ask(key, 1, request(key, resources=[resource]))
        time.sleep(SETTLE_SECONDS)

    # -- membership and session

    def _join(self) -> None:
        """Join, and wait until both brokers have assigned the partitions."""
        deadline = time.monotonic() + JOIN_SECONDS
        for side in self.pair.sides:
            epoch = JOINED
            while True:
                answer = self._beat(side, epoch)
                epoch = max(JOINED, answer.member_epoch)
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    break
                if time.monotonic() > deadline:
                    raise Differs(f"{side.address} assigns no partitions to a share group")
                time.sleep(0.1)
        self.has_joined = True
        self._begin_session()
        time.sleep(SETTLE_SECONDS)

    def _leave(self) -> None:
        for side in self.pair.sides:
            self._beat(side, LEFT)
        self.has_joined = False
        self._begin_session()
        time.sleep(SETTLE_SECONDS)

    def _beat(self, side: Side, epoch: int) -> Any:
        message = request(
            BEAT,
            group_id=self.group,
            member_id=self.member,
            member_epoch=epoch,
            subscribed_topic_names=[self.prefix] if epoch == JOINED else None,
        )
        return side.ask(BEAT, 1, message)

    def _begin_session(self) -> None:
        self.epoch = 0
        # Acquired records by partition, as first and last offsets.
        self.acquired: dict[int, list[tuple[int, int]]] = {}

    def leave_or_join(self) -> None:
        if self.has_joined:
            self._leave()
        else:
            self._join()

    def end_session(self) -> None:
        if self.epoch:
            message = request(
                FETCH, group_id=self.group, member_id=self.member, share_session_epoch=-1
            )
            self.pair.ask(FETCH, 1, message, retried=())
            self._begin_session()
            time.sleep(SETTLE_SECONDS)

    def wait_for_locks(self) -> None:
        if self.lock_ms == SHORT_LOCK_MS:
            time.sleep(LOCK_SECONDS)

    # -- records

    def produce(self) -> None:
        self._append(self.rng.randrange(2), self.rng.choice((1, 2, 5)))

    def _append(self, partition: int, count: int) -> None:
        batch = encode_batch([Record(b"k", b"v", NOW_MS)] * count)
        message = produce(self.prefix, partition, 9, lambda side: batch)
        self.pair.ask(ApiKey.PRODUCE, 9, message)
        self.ends[partition] += count

    def fetch(self) -> None:
        """Fetch from one partition, and acknowledge records that were acquired from it."""
        if not self.has_joined:
            return
        partition = self.rng.choice((0, 0, 1))
        # Kafka looks for records before it has stored that others are released.
        batches = self._acknowledgements(FETCH, partition, NOT_RELEASED) if self.epoch else []
        limits = self.rng.choice((1, 3, 500)), self.rng.choice((1, 3, 500))
        epoch = self.epoch

        def message(side: Side) -> Any:
            topic_id = side.topics[self.prefix]
            row = of(FETCH, "Partition", partition_index=partition, acknowledgement_batches=batches)
            other = of(FETCH, "ForgottenTopic", topic_id=topic_id, partitions=[1 - partition])
            return request(
                FETCH,
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=epoch,
                max_wait_ms=WAIT_MS,
                max_bytes=1 << 20,
                max_records=limits[0],
                batch_size=limits[1],
                topics=[of(FETCH, "Topic", topic_id=topic_id, partitions=[row])],
                forgotten_topics_data=[other] if epoch else [],
            )

        self._learn(self.pair.ask(FETCH, 1, message, retried=()))

    def acknowledge(self) -> None:
        partition, epoch = self.rng.choice((0, 0, 1)), self.epoch
        kinds = (*NOT_RELEASED, RELEASE, RELEASE)
        batches = self._acknowledgements(ACKNOWLEDGE, partition, kinds) if epoch else []
        if not batches:
            return

        def message(side: Side) -> Any:
            row = of(
                ACKNOWLEDGE,
                "Partition",
                partition_index=partition,
                acknowledgement_batches=batches,
            )
            topic = of(ACKNOWLEDGE, "Topic", topic_id=side.topics[self.prefix], partitions=[row])
            return request(
                ACKNOWLEDGE,
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=epoch,
                topics=[topic],
            )

        answers = self.pair.ask(ACKNOWLEDGE, 1, message, retried=())
        if None in answers or answers[1].error_code:
            self._begin_session()
        else:
            self.epoch += 1

    def _acknowledgements(self, key: ApiKey, partition: int, kinds: tuple[int, ...]) -> list[Any]:
        """Return acknowledgements of the oldest acquired records: one type, or one per record."""
        acquired = self.acquired.get(partition)
        if not acquired or self.chance(0.3):
            return []
        first, last = acquired.pop(0)
        types = [self.rng.choice([each for each in kinds if each != GAP])]
        if self.chance(0.4):
            types = [self.rng.choice(kinds) for _ in range(first, last + 1)]
        return [
            of(
                key,
                "AcknowledgementBatch",
                first_offset=first,
                last_offset=last,
                acknowledge_types=types,
            )
        ]

    def _learn(self, answers: list[Any]) -> None:
        if None in answers or answers[1].error_code:
            self._begin_session()
            return
        self.epoch += 1
        for topic in answers[1].responses:
            for row in topic.partitions:
                self.acquired.setdefault(row.partition_index, []).extend(
                    (each.first_offset, each.last_offset) for each in row.acquired_records
                )

    # -- offsets of the group

    def _offsets_of_empty_group(self) -> None:
        """Change the offsets of a group without members. Then Kafka's cached states are outdated."""
        self._alter_offsets(self.rng.randrange(self.ends[0] + 1))
        self.describe_offsets()
        self._delete_offsets()
        self.describe_offsets()

    def describe_offsets(self) -> None:
        key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
        row = of(key, "Group", group_id=self.group, topics=None)
        self.pair.ask(key, 1, request(key, groups=[row]), again=True)

    def alter_offsets(self) -> None:
        """Try to alter an offset of a group with a member."""
        end = self.ends[0]
        if self.has_joined:
            self._alter_offsets(self.rng.choice((0, 1, end, end + 5, -1)))

    def _alter_offsets(self, offset: int) -> None:
        key = ApiKey.ALTER_SHARE_GROUP_OFFSETS
        row = of(key, "Partition", partition_index=0, start_offset=offset)
        topic = of(key, "Topic", topic_name=self.prefix, partitions=[row])
        self.pair.ask(key, 0, request(key, group_id=self.group, topics=[topic]))

    def delete_offsets(self) -> None:
        """Try to delete the offsets of a group with a member."""
        if self.has_joined:
            self._delete_offsets()

    def _delete_offsets(self) -> None:
        key = ApiKey.DELETE_SHARE_GROUP_OFFSETS
        topic = of(key, "Topic", topic_name=self.prefix)
        self.pair.ask(key, 0, request(key, group_id=self.group, topics=[topic]))

    def restart(self) -> None:
        super().restart()
        self._join()
