"""The group coordinators of a node: their records in `__consumer_offsets`, their time-outs.

Each partition of the offsets topic is one coordinator, which owns the groups that hash to it. A
coordinator is pure; here its records are appended and replayed, its answers are released at the high
watermark, and its deadlines are waited for. The contract is that of `kbroker.coordinator.result`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import trio

from kbroker.cluster import OFFSETS_TOPIC, Cluster, Topic
from kbroker.coordinator import (
    Answer,
    ClientInfo,
    Event,
    GroupCoordinator,
    GroupSettings,
    Now,
    Parked,
    Result,
    group_partition,
)
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import Record, encode_batch, read_header, read_records

from .explain import cause_of
from .history import History
from .replica import Replica
from .topics import NewTopic, create_topic
from .waiters import Pending

if TYPE_CHECKING:
    from .context import Context
    from .node import Node

logger = logging.getLogger(__name__)

R = TypeVar("R")

LOAD_BYTES = 4 << 20
"""How much of a log is replayed at once when a coordinator is loaded."""
MEMORY_PARTITIONS = 1
"""Partitions of the offsets topic when all is in memory: what one process needs."""


@dataclass(slots=True)
class Shard:
    """One coordinator and the partition that keeps its state."""

    replica: Replica
    coordinator: GroupCoordinator


class GroupPending(Pending[Any]):
    """An answer of a coordinator. When the client goes away, the coordinator is told."""

    __slots__ = ("_service", "_shard", "_slot")

    def __init__(self, service: GroupService, shard: Shard, slot: Parked[Any] | None) -> None:
        super().__init__()
        self._service = service
        self._shard = shard
        self._slot = slot
        if slot is not None:
            slot.on_answer = self.resolve

    def abandon(self) -> None:
        if self._slot is not None and not self.ready:
            self._service.abandon(self._shard, self._slot)
        super().abandon()


class GroupService:
    """All group coordinators of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.history: History[str, Event] = History()
        """What changed in each group and why."""
        self._shards: dict[int, Shard] = {}
        self._armed_ms: float = math.inf
        self._rearm = trio.Event()

    # -- where groups live

    async def create_offsets_topic(self) -> Topic:
        """Return the topic that keeps groups and offsets, made on first use."""
        node = self._node
        topic = node.cluster.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        config = node.config
        partitions = config.offsets_topic_num_partitions
        if node.in_memory and config.origin("offsets.topic.num.partitions") is None:
            partitions = MEMORY_PARTITIONS
        new = NewTopic(
            OFFSETS_TOPIC,
            partitions,
            min(config.offsets_topic_replication_factor, len(node.cluster.node_ids)),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        try:
            return await create_topic(node.cluster, config, new, cause="first use of a group")
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return node.cluster.topics[OFFSETS_TOPIC]

    def shard(self, group_id: str) -> Shard:
        """Return the coordinator of a group.

        Raises KafkaError: NOT_COORDINATOR when this node is not it (any more, or yet).
        """
        topic = self._node.cluster.topics.get(OFFSETS_TOPIC)
        if topic is None or self._node.stopping:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        index = group_partition(group_id, len(topic.partitions))
        shard = self._shards.get(index)
        return shard or self._open_shard(topic, index)

    def shards(self) -> list[Shard]:
        """All coordinators that have groups or offsets."""
        return list(self._shards.values())

    def reload(self, group_id: str) -> None:
        """Rebuild the coordinator of a group, as when its partition gets another leader.

        Members that wait for it are told NOT_COORDINATOR.
        """
        topic = self._node.cluster.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            index = group_partition(group_id, len(topic.partitions))
            if index in self._shards:
                self._lose(self._shards[index])
            self._open_shard(topic, index)

    async def load(self) -> None:
        """Rebuild every coordinator from its partition."""
        topic = self._node.cluster.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return
        for name, index in self._node.logs.folders():
            if name == OFFSETS_TOPIC:
                self._open_shard(topic, index)
                await trio.lowlevel.checkpoint()

    def _open_shard(self, topic: Topic, index: int) -> Shard:
        try:
            replica = self._node.replica(topic, index)
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        shard = Shard(replica, self._new_coordinator())
        for record in _stored_records(replica):
            if record.key is not None:
                shard.coordinator.replay(record.key, record.value)
        self._shards[index] = shard
        self.run(shard, shard.coordinator.on_loaded(self.now()))
        return shard

    def _new_coordinator(self) -> GroupCoordinator:
        config = self._node.config
        settings = GroupSettings(
            session_timeout_min_ms=config.group_min_session_timeout_ms,
            session_timeout_max_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_size_max=config.group_max_size,
            offset_metadata_length_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        )
        return GroupCoordinator(settings, _ClusterTopics(self._node.cluster))

    # -- running operations

    def now(self) -> Now:
        clock = self._node.clock
        return Now(clock.log_ms(), clock.coordinator_ms())

    def run(self, shard: Shard, result: Result[R]) -> R | GroupPending | None:
        """Append, replay and release one result; return the response or what becomes it."""
        if result.records:
            try:
                self._store(shard, result)
            except KafkaError as error:
                logger.error("group records were not stored: %s", str(error))
                assert result.on_failure is not None
                result = result.on_failure(error.code, self.now())
        for event in result.events:
            self._note(event)
        self._arm(shard)
        self._node.changes.happened()
        return self.release(shard, result.response, result.answers)

    def _note(self, event: Event) -> None:
        self.history.note(event.group_id, event)
        logger.info(
            "group %s: %s; now %s, generation %d",
            event.group_id,
            cause_of(event),
            event.state,
            event.generation,
        )

    def run_all(self, shard: Shard, results: Iterable[Result[None]]) -> None:
        """Run results one after the other; each is made after the one before was handled."""
        for result in results:
            self.run(shard, result)

    def _store(self, shard: Shard, result: Result[Any]) -> None:
        now = self.now()
        batch = encode_batch([Record(key, value, now.log_ms) for key, value in result.records])
        shard.replica.append(memoryview(batch), read_header(batch), now.log_ms)
        for key, value in result.records:
            shard.coordinator.replay(key, value)

    def release(
        self, shard: Shard, response: R | Parked[R] | None, answers: Sequence[Answer] = ()
    ) -> R | GroupPending | None:
        """Give answers once what they are based on is committed: now, if nothing is in flight."""
        log = shard.replica.log
        slot = response if isinstance(response, Parked) else None
        if log.high_watermark >= log.log_end_offset:
            _give(answers)
            if slot is None:
                return response  # type: ignore[return-value]
            return slot.response or GroupPending(self, shard, slot)
        pending = GroupPending(self, shard, slot)

        def at_high_watermark(committed: bool) -> None:
            if not committed:
                self._lose(shard)
            _give(
                answers
                if committed
                else [answer.refused(ErrorCode.NOT_COORDINATOR) for answer in answers]
            )
            if slot is None:
                pending.resolve(response if committed else None)

        shard.replica.commits.add(log.log_end_offset, at_high_watermark)
        return pending

    def _lose(self, shard: Shard) -> None:
        """The partition cannot be written any more: its coordinator's state is ahead of the log."""
        for index, known in tuple(self._shards.items()):
            if known is shard:
                del self._shards[index]
                _give(shard.coordinator.on_unloaded())

    def stop(self) -> None:
        """Tell everyone who is parked that the coordinator goes."""
        for index in tuple(self._shards):
            self._lose(self._shards[index])

    def abandon(self, shard: Shard, slot: Parked[Any]) -> None:
        """The client that waits in `slot` has gone."""
        self.run(shard, shard.coordinator.abandon(slot, self.now()))

    def topic_deleted(self, name: str) -> None:
        """Offsets of a deleted topic go with it."""
        if name == OFFSETS_TOPIC:
            self.stop()
            return
        for shard in self.shards():
            self.run_all(shard, shard.coordinator.forget_topics([name]))

    # -- time

    def _arm(self, shard: Shard) -> None:
        deadline = shard.coordinator.next_deadline()
        if deadline is not None and deadline < self._armed_ms:
            self._rearm.set()

    async def run_timers(self) -> None:
        """Let coordinators act on their time-outs, until cancelled."""
        while True:
            self._rearm = trio.Event()
            self.run_due()
            deadline = self.next_deadline()
            self._armed_ms = math.inf if deadline is None else deadline
            wait_seconds = max(self._armed_ms - self._node.clock.coordinator_ms(), 0) / 1000
            with trio.move_on_after(wait_seconds):
                await self._rearm.wait()

    def next_deadline(self) -> int | None:
        """When the next time-out comes, in coordinator time; None when nothing waits for one."""
        deadlines = [shard.coordinator.next_deadline() for shard in self._shards.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def run_due(self) -> None:
        """Act on the time-outs that have come."""
        now = self.now()
        for shard in self.shards():
            self.run_all(shard, shard.coordinator.due(now))

    def clock_moved(self, *, keep_members: bool) -> None:
        """The coordinator clock jumped: act on what is due now, and wait for what is next.

        With `keep_members` all members count as just heard of.
        """
        if keep_members:
            self.renew_sessions()
        self.run_due()
        self._rearm.set()

    def renew_sessions(self) -> None:
        """All members count as just heard of."""
        for shard in self.shards():
            shard.coordinator.renew_sessions(self.now())

    async def expire_offsets_regularly(self) -> None:
        """Delete offsets that outlived their retention, until cancelled."""
        interval_ms = self._node.config.offsets_retention_check_interval_ms
        while True:
            await trio.sleep(interval_ms / 1000)
            self.expire_offsets()

    def expire_offsets(self) -> None:
        """Delete the offsets that outlived their retention."""
        for shard in self.shards():
            self.run_all(shard, shard.coordinator.expire_offsets(self.now()))


class _ClusterTopics:
    """What a coordinator asks about topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._cluster.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, name: str) -> UUID | None:
        topic = self._cluster.topics.get(name)
        return topic.id if topic else None

    def exists(self, name: str, partition: int) -> bool:
        return self._cluster.partition(name, partition) is not None


def _give(answers: Sequence[Answer]) -> None:
    for slot, response in answers:
        slot.answer(response)


def client_info(ctx: Context) -> ClientInfo:
    """Who sent a request, as groups show their members."""
    return ClientInfo(ctx.client_id or "", "/" + ctx.peer.host)


def _stored_records(replica: Replica) -> Iterator[Record]:
    log = replica.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, LOAD_BYTES, limit=log.log_end_offset)
        if not found.size:
            return
        records = found.records
        yield from read_records(records if isinstance(records, bytes) else records.read())
        offset = found.next_offset
