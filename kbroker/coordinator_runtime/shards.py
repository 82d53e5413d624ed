"""Coordinators of a node for the partitions of one internal topic.

A coordinator does no I/O. This module appends and replays its records, releases its responses at
the high watermark, and waits for its deadlines, as `kbroker.coordinator.common.result` requires.

A coordinator runs on the leader of its partition. When this node becomes leader, the coordinator is
loaded from the log, once all records in the log are committed. Loading a large log takes a while;
in the meantime, requests for this coordinator fail with COORDINATOR_LOAD_IN_PROGRESS. When this
node loses leadership, the state is dropped and pending requests fail with NOT_COORDINATOR.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import trio

from kbroker.cluster import NO_LEADER, Topic, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.coordinator import (
    Answer,
    MemoryLimit,
    Now,
    PendingResponse,
    Pieces,
    Result,
    hash_partition,
)
from kbroker.coordinator.common.record import CoordinatorRecord
from kbroker.coordinator.common.version_adapters import error_response
from kbroker.partitions.waiters import Pending
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import EncodeError
from kbroker.protocol.records import (
    BatchHeader,
    Record,
    encode_batch,
    read_header,
)
from kbroker.protocol.transaction_log import NO_PRODUCER_ID
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.errors import StorageError

from .deadlines import Deadlines
from .loading import RECORDS_AT_ONCE, CoordinatorLoader, Load
from .partition_writer import LeaderLog, PartitionWriter
from .shard import C, Coordinator, Shard

logger = logging.getLogger(__name__)

# Number of partitions of an internal topic in an in-memory cluster.
MEMORY_PARTITIONS = 1
# Log level of errors that were logged before.
REPEATED_ERROR_LEVEL = logging.DEBUG

R = TypeVar("R")


class ShardPending(Pending[Any]):
    """A pending response of a coordinator, which is notified if the client disconnects."""

    __slots__ = ("_service", "_shard", "_slot")

    def __init__(
        self,
        service: Shards[Any],
        shard: Shard[Any],
        slot: PendingResponse[Any] | None,
        *,
        deadline: float = math.inf,
        on_timeout: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(deadline=deadline, on_timeout=on_timeout)
        self._service = service
        self._shard = shard
        self._slot = slot
        if slot is not None:
            slot.on_answer = self.resolve

    def abandon(self) -> None:
        if self._slot is not None and not self.ready:
            self._service.abandon(self._shard, self._slot)
        super().abandon()


class Shards(ABC, Generic[C]):
    """All coordinators of one type on one node.

    Args:
        context: The node.
        partitions: Partitions of the node.
        topic: Internal topic that stores their records.
    """

    def __init__(self, context: NodeContext, partitions: PartitionWriter, topic: str) -> None:
        self._context = context
        self._partitions = partitions
        self._retired = False
        self.topic = topic
        self._shards: dict[int, Shard[C]] = {}
        self._loader = CoordinatorLoader(
            context,
            partitions,
            replay=self._load_records,
            begin=self._begin_serving,
            serve=self._serve,
            report=self._log_load_failure,
        )
        self.deadlines = Deadlines(context.clock, self.shards, self.run_all)

    @abstractmethod
    def _new_topic(self) -> NewTopic:
        """Return the internal topic to create on first use."""

    @abstractmethod
    def _new_coordinator(self, index: int) -> C:
        """Return an empty coordinator for one partition."""

    @abstractmethod
    def _expiry_interval_ms(self) -> int:
        """Return the interval between two expiration passes, in ms."""

    @abstractmethod
    def _record_event(self, event: Any) -> None:
        """Store and log one event of a result."""

    def _run_in_background(self, shard: Shard[C], work: Pieces) -> None:
        """Start long-running work of a coordinator, and continue it in the background."""
        raise NotImplementedError

    def _memory_limit(self, setting: str, limit: int) -> MemoryLimit:
        """Return the memory limit in bytes that all coordinators share.

        Args:
            setting: Name of the setting, for the warning.
            limit: Maximum in bytes.
        """

        def warn() -> None:
            text = f"a coordinator of this node has reached {setting}={limit}; rejecting more"
            if self._context.error_log.is_new(text):
                logger.warning("%s", text)

        return MemoryLimit(limit, warn)

    # -- placement of coordinators

    def _internal_topic(
        self, setting: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> NewTopic:
        """Return the internal topic with the partition count of `setting`.

        In an in-memory cluster, which has one process, the default is one partition.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE, until enough nodes have registered.
        """
        config, cluster = self._context.config, self._context.cluster
        if self._context.in_memory and config.origin(setting) is None:
            partitions = MEMORY_PARTITIONS
        known = len(cluster.node_ids)
        if known < min(replicas, config.nodes):
            # At the first start, fewer nodes are registered. The topic would stay under-replicated
            # forever.
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.topic} cannot be created yet: {known} of {config.nodes} nodes have registered",
            )
        replicas = max(min(replicas, len(cluster.open_ids)), 1)
        return NewTopic(
            self.topic, partitions, replicas, configs={"cleanup.policy": "compact"} | configs
        )

    async def create_topic(self) -> Topic:
        """Return the internal topic, which is created on first use."""
        cluster = self._context.cluster
        topic = cluster.topics.get(self.topic)
        if topic is not None:
            return topic
        new = self._new_topic()
        try:
            return await create_topic(cluster, self._context.config, new, cause="first use")
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                text = f"cannot create {self.topic}: {error.message or error.code.name}"
                if self._context.error_log.is_new(text):
                    logger.error("%s", text)
                raise
            return cluster.topics[self.topic]

    def coordinator_id(self, key: str) -> int:
        """Return the node that coordinates a group or a transactional ID.

        Returns:
            NO_LEADER if the partition has no leader or the topic does not exist yet.
        """
        topic = self._context.cluster.topics.get(self.topic)
        if topic is None:
            return NO_LEADER
        return topic.partitions[hash_partition(key, len(topic.partitions))].leader

    def partition_of(self, key: str) -> tuple[str, int]:
        """Return the partition whose leader coordinates a group or a transactional ID.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, if the topic does not exist yet.
        """
        topic = self._context.cluster.existing(self.topic, 0)[0]
        return self.topic, hash_partition(key, len(topic.partitions))

    def shard(self, key: str) -> Shard[C]:
        """Return the coordinator of a group or of a transactional ID.

        Raises:
            KafkaError: NOT_COORDINATOR if this node is not the coordinator,
                COORDINATOR_LOAD_IN_PROGRESS while the coordinator is loading.
        """
        topic = self._context.cluster.topics.get(self.topic)
        if topic is None or self._retired:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        index = hash_partition(key, len(topic.partitions))
        return self._shards.get(index) or self._load_now(topic, index)

    def shards(self) -> list[Shard[C]]:
        """Return all coordinators that serve."""
        return list(self._shards.values())

    def known_shards(self) -> list[Shard[C]]:
        """Return all coordinators, including those that are loading."""
        return [*self._shards.values(), *(load.shard for load in self._loader)]

    def serves(self, shard: Shard[C]) -> bool:
        """Return True if a coordinator is still the current one of its partition."""
        return self._shards.get(shard.replica.index) is shard

    @property
    def is_loading(self) -> bool:
        """True if a coordinator is still loading."""
        return bool(self._loader)

    def reload(self, key: str) -> None:
        """Reload the coordinator of `key`, as after a change of the partition's leader.

        Pending requests fail with NOT_COORDINATOR.
        """
        topic = self._context.cluster.topics.get(self.topic)
        if topic is not None:
            index = hash_partition(key, len(topic.partitions))
            if index in self._shards:
                self._drop_lost(self._shards[index])
            with suppress(KafkaError):  # requests for this coordinator get the error
                self._load_now(topic, index)

    # -- changes of leadership

    def topics_changed(self, event: TopicsChanged) -> None:
        """Process changes of the internal topic's leaders, after the replicas were updated."""
        if event.deleted:
            self._loader.record_deleted_topics()
        if any(topic.name == self.topic for topic in (*event.deleted, *event.changed)):
            self.apply_leadership()

    def apply_leadership(self) -> None:
        """Load coordinators for the partitions that this node leads, and drop all others."""
        topic = self._context.cluster.topics.get(self.topic)
        for shard in self.known_shards():
            if topic is None or shard.replica.topic.id != topic.id or not _is_led(shard):
                self._drop_lost(shard)
        if topic is None or self._retired:
            return
        for index in range(len(topic.partitions)):
            if self._partitions.has_log(self.topic, index):
                self._begin_if_led(topic, index)

    def _begin_if_led(self, topic: Topic, index: int) -> None:
        is_known = index in self._shards or self._loader.get(index) is not None
        if is_known or not self._partitions.leads(topic.partitions[index]):
            return
        try:
            self._begin_load(topic, index)
        except KafkaError as error:
            self._log_load_failure(index, error.__cause__ or error)

    def _log_load_failure(self, index: int, error: BaseException) -> None:
        if isinstance(error, StorageError):
            return  # `Partitions` logged why the partition is offline
        text = f"cannot load the coordinator of {self.topic}-{index}: {error}"
        if self._context.error_log.is_new(text):
            logger.error("%s", text)

    def _begin_load(self, topic: Topic, index: int) -> Load[C]:
        """Begin to load a coordinator.

        Raises:
            KafkaError: NOT_COORDINATOR if this node does not lead the partition.
        """
        try:
            replica = self._partitions.replica(topic, index)
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        shard = Shard(replica, self._new_coordinator(index))
        # Records in the log of the only replica cannot be truncated.
        return self._loader.add(shard, is_replicated=len(topic.partitions[index].isr) > 1)

    def _load_now(self, topic: Topic, index: int) -> Shard[C]:
        """Return a coordinator that can be loaded immediately, as small ones can.

        Raises:
            KafkaError: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        load = self._loader.get(index) or self._begin_load(topic, index)
        if not self._loader.finish_now(load):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return load.shard

    def _begin_serving(self, shard: Shard[C]) -> Iterator[int]:
        """Start a coordinator whose log was replayed, and yield the cost of each piece."""
        cost = 0  # the first piece is free, so that small coordinators serve at once
        for result in shard.coordinator.on_loaded(self.now()):
            self.run(shard, result)
            yield cost
            cost = RECORDS_AT_ONCE

    def _serve(self, load: Load[C]) -> None:
        """Add a loaded coordinator to those that serve."""
        shard = self._shards[load.shard.replica.index] = load.shard
        self.store(shard, Result())  # processes what `store` skipped during the load
        self._on_loaded(load)

    async def load(self) -> None:
        """Load the coordinators for a limited time, the smallest first; `work` loads the rest."""
        self.apply_leadership()
        await self._loader.run_some()

    def _on_loaded(self, load: Load[C]) -> None:
        """Process the end of a load. Subclasses override this."""

    async def work(self) -> None:
        """Load coordinators, process timers and expire records, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._loader.run)
            nursery.start_soon(self.deadlines.run)
            nursery.start_soon(self.expire_regularly)

    # -- long-running work

    def sweep(self, shard: Shard[C], pieces: Pieces) -> Iterator[int]:
        """Do long-running work of a coordinator while it serves.

        Yields:
            The number of records of each piece.
        """
        while self.serves(shard):
            try:
                piece = next(pieces)
            except StopIteration:
                return
            if piece is not None:
                self.run(shard, piece)
            yield 0 if piece is None else len(piece.records)

    # -- running operations

    def now(self) -> Now:
        clock = self._context.clock
        return Now(clock.log_ms(), clock.coordinator_ms())

    def run(self, shard: Shard[C], result: Result[R]) -> R | ShardPending | None:
        """Append, replay and release one result, and return its (possibly pending) response."""
        result = self.store(shard, result)
        return self.release(shard, result.response, result.answers)

    def store(self, shard: Shard[C], result: Result[R]) -> Result[R]:
        """Append and replay one result, and return the result to release."""
        # The callback may reference the result: drop it from the result (reference cycle).
        undo, result.on_failure = result.on_failure, None
        if result.records:
            try:
                self._append(shard, result)
            except KafkaError as error:
                self._log_failure(error)
                assert undo is not None
                result = undo(error.code, self.now())
        for event in result.events:
            self._record_event(event)
        if result.work is not None:
            self._run_in_background(shard, result.work)
        self.deadlines.arm(shard)
        self._context.changes.notify()
        return result

    def _log_failure(self, error: KafkaError) -> None:
        level = logging.ERROR
        if error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
            level = logging.DEBUG  # an error of the producer, not of the log
        elif error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            level = (
                logging.ERROR
                if self._context.error_log.is_new(f"{self.topic}: {error}")
                else REPEATED_ERROR_LEVEL
            )
        elif error.code == ErrorCode.NOT_ENOUGH_REPLICAS:
            level = (
                logging.WARNING
                if self._context.error_log.is_new(f"{self.topic}: {error}")
                else REPEATED_ERROR_LEVEL
            )
        logger.log(level, "could not append records to %s: %s", self.topic, str(error))

    def run_all(self, shard: Shard[C], results: Iterable[Result[None]]) -> None:
        """Process results one after another; each is created after the previous one."""
        for result in results:
            self.run(shard, result)

    def _append(self, shard: Shard[C], result: Result[R]) -> None:
        now = self.now()
        records = _encode_records(shard.coordinator, result.records, now)
        producer_id, producer_epoch = result.producer or (NO_PRODUCER_ID, -1)
        encode = partial(
            encode_batch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=result.producer is not None,
        )
        if not shard.replica.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        shard.replica.check_enough_in_sync()
        appended = iter(result.records)
        for batch, count in _encode_batches(records, encode, _batch_bytes_max(shard.replica.log)):
            shard.replica.append(memoryview(batch), read_header(batch), now.log_ms)
            for record in islice(appended, count):
                shard.coordinator.replay(record, producer_id)

    def _load_records(
        self, coordinator: C, header: BatchHeader, records: Iterable[Record]
    ) -> Iterator[int]:
        """Decode records of one batch of the log, and replay them.

        Yields:
            Cost of additional work, counted like records in `_steps`.

        Raises:
            DecodeError: A record cannot be decoded.
        """
        if header.is_control:
            yield from self._replay_markers(coordinator, header, records)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for stored in records:
            if stored.key is not None:
                record = coordinator.serde.decode(stored.key, stored.value)
                if record is not None:  # None: the record was written by a later release
                    coordinator.replay(record, producer_id)

    def _replay_markers(
        self, coordinator: C, header: BatchHeader, records: Iterable[Record]
    ) -> Iterator[int]:
        """Replay transaction markers. Only the offsets topic contains transactions."""
        yield from ()

    def release(
        self,
        shard: Shard[C],
        response: R | PendingResponse[R] | None,
        answers: Sequence[Answer] = (),
    ) -> R | ShardPending | None:
        """Release responses when the state that they are based on is committed.

        If all records are committed already, the responses are released immediately.
        """
        log = shard.replica.log
        slot = response if isinstance(response, PendingResponse) else None
        if log.high_watermark >= log.log_end_offset:
            send_answers(answers)
            if slot is None:
                return response  # type: ignore[return-value]
            return slot.response or ShardPending(self, shard, slot)
        pending = self._new_pending(shard, response)

        def at_high_watermark(committed: bool) -> None:
            given, answer = answers, response
            if not committed:
                self._drop_lost(shard)
                given = [each.with_error(ErrorCode.NOT_COORDINATOR) for each in answers]
                answer = error_response(response, ErrorCode.NOT_COORDINATOR)
            send_answers(given)
            if slot is None:
                pending.resolve(answer)

        shard.replica.commits.add(log.log_end_offset, at_high_watermark)
        return pending

    def _new_pending(self, shard: Shard[C], response: object) -> ShardPending:
        """Return a pending response, with a timeout if the commit depends on other replicas."""
        if isinstance(response, PendingResponse):
            return ShardPending(self, shard, response)
        if len(shard.replica.partition.replicas) == 1:
            return ShardPending(self, shard, None)
        seconds = self._context.config.offsets_commit_timeout_ms / 1000
        return ShardPending(
            self,
            shard,
            None,
            deadline=trio.current_time() + seconds,
            on_timeout=lambda: error_response(response, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        )

    def _drop_lost(self, shard: Shard[C]) -> None:
        """Drop a coordinator whose partition was lost; its state may be ahead of the log."""
        index = shard.replica.index
        self._loader.drop(shard)
        if self._shards.get(index) is shard:
            del self._shards[index]
            send_answers(shard.coordinator.on_unloaded())

    def stop(self) -> None:
        """Drop all coordinators, and fail their pending requests."""
        self._loader.drop_all()
        for shard in self.shards():
            self._drop_lost(shard)

    def retire(self) -> None:
        """Drop all coordinators, and create no more from now on."""
        self._retired = True
        self.stop()

    def abandon(self, shard: Shard[C], slot: PendingResponse[R]) -> None:
        """Notify a coordinator that the client of a pending request disconnected."""
        self.run(shard, shard.coordinator.abandon(slot, self.now()))

    # -- time

    async def expire_regularly(self) -> None:
        """Delete expired records at regular intervals, until cancelled."""
        while True:
            await trio.sleep(self._expiry_interval_ms() / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Delete expired records in the background."""
        duty_cycle = DutyCycle()
        for shard in self.shards():
            for _ in self.sweep(shard, shard.coordinator.expire(self.now())):
                await duty_cycle.pause()


def _is_led(shard: Shard[C]) -> bool:
    replica = shard.replica
    return replica.is_leader and not replica.closed


async def outcome_of(outcome: R | ShardPending | None) -> R | None:
    """Return the response of an operation when it is durable, or None if the shard was lost."""
    return await outcome.wait() if isinstance(outcome, ShardPending) else outcome


def send_answers(answers: Sequence[Answer]) -> None:
    """Send responses to pending requests."""
    for slot, response in answers:
        slot.answer(response)


def _encode_records(
    coordinator: Coordinator, records: Iterable[CoordinatorRecord], now: Now
) -> list[Record]:
    """Encode the records of a result.

    Raises:
        KafkaError: A field is too large.
    """
    encode = coordinator.serde.encode
    try:
        return [Record(*encode(record), now.log_ms) for record in records]
    except EncodeError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error


def _batch_bytes_max(log: LeaderLog) -> int:
    return min(log.config.produce_rules.max_message_bytes, log.config.segment_bytes)


def _encode_batches(
    records: list[Record], encode: Callable[[list[Record]], bytes], bytes_max: int
) -> Iterator[tuple[bytes, int]]:
    """Encode records, in order, in batches within the size limit of the topic.

    A single record is never split.

    Yields:
        A batch and the number of its records.
    """
    batch = encode(records)
    if len(batch) <= bytes_max or len(records) == 1:
        yield batch, len(records)
        return
    middle = len(records) // 2
    for half in (records[:middle], records[middle:]):
        yield from _encode_batches(half, encode, bytes_max)
