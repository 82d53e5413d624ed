"""Committed offsets: commits, also in transactions, deleted offsets, groups and topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey

from .history import Area
from .pair import NO_ID, Side
from .records import Producer

MISSING, DELETED, UNKNOWN = "missing", "deleted", "unknown"
UNKNOWN_ID = UUID(int=99)
# Time until a group coordinator has deleted the offsets of a deleted topic, in seconds.
DELETE_SECONDS = 0.5


class Offsets(Area):
    """Three topics, four groups without members, and a transactional producer."""

    weights: ClassVar[Mapping[str, int]] = {
        "commit": 35,
        "fetch": 15,
        "delete_offsets": 10,
        "delete_group": 5,
        "commit_in_transaction": 10,
        "end_transaction": 8,
        "replace_topic": 4,
        "initialise": 2,
        "compare_groups": 6,
    }

    def begin(self) -> None:
        self._created = 0
        self.topics = [self._create() for _ in range(3)]
        self.groups = [f"{self.prefix}-group-{number}" for number in range(4)]
        self.producer = Producer(self.prefix, self.prefix)
        self.producer.initialise(self.pair, self.rng)
        # A group that stores nothing disappears from kbroker at once, from Kafka later.
        for group in self.groups:
            self._pin(group)

    def end(self) -> None:
        self.compare_groups()

    def _create(self) -> str:
        self._created += 1
        name = f"{self.prefix}-{self._created}"
        self.pair.create(name, 2)
        return name

    def _pin(self, group: str) -> None:
        """Commit an offset of the topic that stays, so that the group is never empty."""
        key = ApiKey.OFFSET_COMMIT
        row = of(key, "Partition", partition_index=0, committed_offset=1)
        topic = of(key, "Topic", name=self.topics[0], partitions=[row])
        self.pair.ask(key, 9, request(key, group_id=group, topics=[topic]))

    def _topic_id(self, side: Side, name: str) -> UUID:
        if name == DELETED:
            return UUID(bytes=side.own.get(DELETED, UNKNOWN_ID).bytes)
        return {MISSING: NO_ID, UNKNOWN: UNKNOWN_ID}.get(name) or side.topics[name]

    def _named(self, side: Side, name: str, by_id: bool) -> dict[str, Any]:
        return {"topic_id": self._topic_id(side, name)} if by_id else {"name": name}

    def commit(self) -> None:
        key, rng = ApiKey.OFFSET_COMMIT, self.rng
        version = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10))
        name = rng.choice([*self.topics, MISSING, *((UNKNOWN, DELETED) if version >= 10 else ())])
        group = rng.choice(self.groups)
        partitions = dict.fromkeys((rng.choice((0, 1, 1, 5, -1)), 0))
        values = {
            "committed_offset": rng.choice((0, 5, 77, -1, 2**40, rng.randrange(1000))),
            "committed_leader_epoch": rng.choice((-1, 0, 3)),
            "committed_metadata": rng.choice((None, "", "m", "x" * 4096, "x" * 4097, "\xfc")),
        }
        member = rng.choice([(-1, "")] * 8 + [(0, ""), (1, "m"), (-1, "m"), (-2, "")])
        instance = rng.choice([None] * 9 + ["i"]) if version >= 7 else None
        retention = rng.choice((-1, -1, -1, 10**9)) if version < 5 else -1

        def message(side: Side) -> Any:
            rows = [of(key, "Partition", partition_index=each, **values) for each in partitions]
            topic = of(key, "Topic", partitions=rows, **self._named(side, name, version >= 10))
            return request(
                key,
                group_id=group,
                generation_id_or_member_epoch=member[0],
                member_id=member[1],
                group_instance_id=instance,
                retention_time_ms=retention,
                topics=[topic],
            )

        self.pair.ask(key, version, message)

    def fetch(self) -> None:
        key, rng = ApiKey.OFFSET_FETCH, self.rng
        version = rng.choice((1, 2, 3, 5, 6, 7, 8, 9, 10))
        name = rng.choice([*self.topics, MISSING, *((UNKNOWN, DELETED) if version >= 10 else ())])
        group, is_some = rng.choice(self.groups), self.chance(0.7) or version < 2

        def message(side: Side) -> Any:
            row = {"partition_indexes": [0, 1, 7], **self._named(side, name, version >= 10)}
            topics = [of(key, "Topic", **row)] if is_some else None
            if version < 8:
                return request(key, group_id=group, topics=topics)
            return request(key, groups=[of(key, "Group", group_id=group, topics=topics)])

        self.pair.ask(key, version, message, again=True)

    def delete_offsets(self) -> None:
        key = ApiKey.OFFSET_DELETE
        rows = [of(key, "Partition", partition_index=each) for each in (0, self.rng.choice((1, 5)))]
        name = self.rng.choice([*self.topics[1:], MISSING])
        topic = of(key, "Topic", name=name, partitions=rows)
        group = self.rng.choice([*self.groups, MISSING])
        self.pair.ask(key, 0, request(key, group_id=group, topics=[topic]))

    def delete_group(self) -> None:
        key, group = ApiKey.DELETE_GROUPS, self.rng.choice(self.groups)
        answers = self.pair.ask(key, 2, request(key, groups_names=[group]))
        if not answers[1].results[0].error_code:
            self._pin(group)

    def commit_in_transaction(self) -> None:
        key, rng = ApiKey.TXN_OFFSET_COMMIT, self.rng
        group, name = rng.choice(self.groups), rng.choice([*self.topics, MISSING])
        partition, offset = rng.choice((0, 1, 5)), rng.choice((0, 5, 77, -1, 2**40))

        def message(side: Side) -> Any:
            producer_id, epoch = side.producers[self.prefix]
            row = of(key, "Partition", partition_index=partition, committed_offset=offset)
            return request(
                key,
                transactional_id=self.prefix,
                group_id=group,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[of(key, "Topic", name=name, partitions=[row])],
            )

        self.pair.ask(key, 5, message)

    def end_transaction(self) -> None:
        key, is_committed = ApiKey.END_TXN, self.chance(0.6)

        def message(side: Side) -> Any:
            producer_id, epoch = side.producers[self.prefix]
            return request(
                key,
                transactional_id=self.prefix,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=is_committed,
            )

        self.producer.learn(self.pair, self.pair.ask(key, 5, message))
        self.producer.wait_for_markers(self.pair)

    def initialise(self) -> None:
        self.producer.initialise(self.pair, self.rng)

    def replace_topic(self) -> None:
        """Delete a topic, and create it again or another one."""
        key, position = ApiKey.DELETE_TOPICS, self.rng.choice((1, 2))
        name = self.topics[position]
        for side in self.pair.sides:
            side.own[DELETED] = side.topics[name]
        self.pair.ask(key, 5, request(key, topic_names=[name], timeout_ms=5000))
        time.sleep(DELETE_SECONDS)
        if self.chance(0.5):
            self.pair.create(name, 2)
        else:
            self.topics[position] = self._create()

    def compare_groups(self) -> None:
        key = ApiKey.OFFSET_FETCH
        for group in self.groups:
            for is_stable in (False, True):
                row = of(key, "Group", group_id=group, topics=None)
                message = request(key, require_stable=is_stable, groups=[row])
                self.pair.ask(key, 9, message, again=True)
        key = ApiKey.DESCRIBE_GROUPS
        self.pair.ask(key, 5, request(key, groups=self.groups), again=True)
