"""Writer of the dead-letter queues of share groups (KIP-1191).

The leader of a share partition writes the records that its group could not process to the topic in
`errors.deadletterqueue.topic.name`. The records have the state ARCHIVING until then. If a record
cannot be written, it is archived nevertheless, and an error is logged.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import trio

from kbroker.cluster import NO_LEADER, ConfigResource, ResourceType, Topic
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.config import GroupConfig, TopicConfig
from kbroker.coordinator import CopiedRecords, DeadLetters, DeadLetterSource
from kbroker.coordinator.share.dlq_records import copy_records, size_bound
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.log_validator import LogValidator
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import HEADER_SIZE, TIMESTAMP_MIN, BatchHeader, Record, encode_batch
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime.backoff import Backoff
from kbroker.runtime.batch_reads import ignore_cpu_time
from kbroker.runtime.fair_slots import FairSlots
from kbroker.runtime.time_slices import DutyCycle, Wanted
from kbroker.storage.cached import Reading
from kbroker.storage.log import Log
from kbroker.storage.lookups import StoredBatch, batch_since

from .leader_replicas import LeaderReplicas

logger = logging.getLogger(__name__)

# Maximum number of attempts to write a batch, and the pauses between them in seconds, as in Kafka.
ATTEMPTS_MAX = 5
BACKOFF_SECONDS = 1.0
BACKOFF_SECONDS_MAX = 30.0
# Timeout of an attempt in ms: the records must be committed by then.
PRODUCE_TIMEOUT_MS = 10_000
# Version of the Produce request whose rules apply to a batch of this node.
PRODUCE_VERSION = 13
ALL_IN_SYNC = -1
# Maximum number of records in a batch. The topic's `max.message.bytes` also limits a batch.
BATCH_RECORDS_MAX = 1000
# Maximum number of batches in memory per node that leads partitions of dead-letter queues.
BATCHES_MAX = 2
# Maximum sequence number of a record of an idempotent producer.
SEQUENCE_MAX = 2**31 - 1
# Records to encode per step, in less than a millisecond.
RECORDS_PER_STEP = 50
# Maximum number of groups with counts of their own; further groups are counted as `OTHER_GROUPS`.
GROUPS_MAX = 1000
OTHER_GROUPS = "other"
# Minimum seconds between two errors that are logged for a share partition.
LOG_SECONDS = 10.0

# Configs of a topic that is created for a dead-letter queue. The timestamp of a record is the time
# of the write, whatever the default of the broker is.
TOPIC_CONFIGS = {
    "errors.deadletterqueue.group.enable": "true",
    "message.timestamp.type": "CreateTime",
}

# Errors of an idempotent producer whose state the leader does not know.
UNKNOWN_PRODUCER_ERRORS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class ShareGroupDLQError(Exception):
    """The dead-letter queue of a group cannot be written; the message contains the cause."""


class _Destination(NamedTuple):
    """Partition of a dead-letter queue topic."""

    topic: Topic
    partition: int
    batch_bytes_max: int

    @property
    def leader(self) -> int:
        return self.topic.partitions[self.partition].leader

    @property
    def topic_partition(self) -> tuple[int, int]:
        return self.topic.id.int, self.partition


class _Producer(NamedTuple):
    """Idempotent producer of one share partition for one partition of a dead-letter queue."""

    id: int
    topic_partition: tuple[int, int]
    next_sequence: int


class DeadLetterWriter:
    """The dead letters of one share partition that are not written yet.

    Args:
        key: Key of the share partition.
        replica: Partition from which records are copied.
        archive: Called with each range after it was written or given up.

    Attributes:
        queue: Ranges that are not written yet.
        closed: True if this node no longer leads the share partition.
    """

    def __init__(
        self,
        key: SharePartitionKey,
        replica: Replica,
        archive: Callable[[DeadLetters], None],
    ) -> None:
        self.key = key
        self.replica = replica
        self.queue: list[DeadLetters] = []
        self.closed = False
        self.is_running = False
        self.producer: _Producer | None = None
        self._archive = archive
        # Records that were archived without a record in the queue, and not logged yet.
        self._lost = 0
        self._reason = ""
        self._next_log = -math.inf

    @property
    def source(self) -> DeadLetterSource:
        return DeadLetterSource(self.key.group_id, self.replica.topic.name, self.key.partition)

    def take_first(self, offset_count: int) -> list[DeadLetters]:
        """Remove records from the queue, the lowest offsets first."""
        self.queue.sort()
        taken: list[DeadLetters] = []
        while offset_count > 0 and self.queue:
            first = self.queue.pop(0)
            last = first.first + offset_count - 1
            if last < first.last:
                self.queue.insert(0, first._replace(first=last + 1))
                first = first._replace(last=last)
            taken.append(first)
            offset_count -= first.last - first.first + 1
        return taken

    def put_back(self, letters: list[DeadLetters], offset: int) -> None:
        """Move the records from an offset on back to the queue.

        Args:
            letters: Records in the order of their offsets. The records before `offset` stay.
            offset: Offset of the first record to move.
        """
        number = next(n for n, each in enumerate(letters) if offset <= each.last)
        split, rest = letters[number], letters[number + 1 :]
        self.queue += [split._replace(first=offset), *rest]
        letters[number:] = [split._replace(last=offset - 1)] if split.first < offset else []

    def archive(self, letters: Sequence[DeadLetters]) -> None:
        """Archive records, unless another node leads the share partition now."""
        for each in letters:
            if not self.closed:
                self._archive(each)

    def give_up(self, letters: Sequence[DeadLetters], reason: str) -> None:
        """Archive records that could not be written."""
        self._lost += record_count(letters)
        self._reason = reason
        self.archive(letters)

    def log_lost(self) -> None:
        """Log the records that were given up, unless there was such an error a moment ago."""
        now = trio.current_time()
        if self._lost and now >= self._next_log:
            self._next_log = now + LOG_SECONDS
            logger.error(
                "group %s: archived %d records of %s-%d that are missing in the dead-letter queue: "
                "%s",
                self.key.group_id,
                self._lost,
                self.replica.topic.name,
                self.key.partition,
                self._reason,
            )
            self._lost = 0


class DeadLetterCounts:
    """Number of dead letters of each group, and of the writes to dead-letter queues.

    Attributes:
        written: Records in a dead-letter queue, by group ID.
        lost: Records that were archived because they could not be written, by group ID.
        produced_batches: Attempts to write a batch, by group ID.
        failed_batches: Batches that were given up, by group ID.
    """

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.produced_batches: Counter[str] = Counter()
        self.failed_batches: Counter[str] = Counter()

    def add(self, counts: Counter[str], group_id: str, number: int) -> None:
        """Add a number to the count of a group."""
        if group_id not in counts and len(counts) >= GROUPS_MAX:
            group_id = OTHER_GROUPS
        counts[group_id] += number


def offsets_of(letters: Sequence[DeadLetters]) -> Iterator[tuple[DeadLetters, int]]:
    """Yield the offset of each record in some ranges, with the range that contains the record."""
    return ((each, offset) for each in letters for offset in range(each.first, each.last + 1))


def record_count(letters: Sequence[DeadLetters]) -> int:
    """Return the number of records in some ranges."""
    return sum(each.last - each.first + 1 for each in letters)


class ShareGroupDLQManager:
    """Writer of the dead letters of all share partitions of a node.

    Each share partition writes one batch at a time. It retries as an idempotent producer, so a
    batch whose response was lost is not written twice.

    Args:
        context: The node.
        partitions: The partitions of the node.
        peers: Connections to the leaders on other nodes. No other requests use them.
        producer_ids: Producer IDs of the node.

    Attributes:
        counts: Number of dead letters since the start of the node.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: LeaderReplicas,
        peers: Peers,
        producer_ids: ProducerIds,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._peers = peers
        self._producer_ids = producer_ids
        self.counts = DeadLetterCounts()
        self._to_run: list[DeadLetterWriter] = []
        self._more_work = trio.Event()
        self._slots: dict[int, FairSlots] = {}

    def enqueue(self, writer: DeadLetterWriter, letters: Sequence[DeadLetters]) -> None:
        """Schedule records. The in-flight limit of the share partition bounds their number."""
        writer.queue += letters
        if letters and not writer.is_running:
            writer.is_running = True
            self._to_run.append(writer)
            self._more_work.set()

    async def run(self) -> None:
        """Write dead letters until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._more_work = trio.Event()  # reset first, so that no work is missed
                writers, self._to_run = self._to_run, []
                for writer in writers:
                    nursery.start_soon(self._write_all, writer)
                await self._more_work.wait()

    async def aclose(self) -> None:
        """Close the connections to other nodes."""
        await self._peers.aclose()

    async def _write_all(self, writer: DeadLetterWriter) -> None:
        while writer.queue and not writer.closed:
            letters = writer.take_first(BATCH_RECORDS_MAX)
            try:
                await self._write(writer, letters)
            except ShareGroupDLQError as error:
                letters += writer.queue
                writer.queue.clear()
                self._give_up(writer, letters, str(error))
        writer.is_running = False
        writer.log_lost()

    async def _write(self, writer: DeadLetterWriter, letters: list[DeadLetters]) -> None:
        """Write a batch with the first of the records, and put the other ones back.

        Raises:
            ShareGroupDLQError: No record can be written.
        """
        backoff = Backoff(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS)
        # All attempts write the same records. Otherwise the leader could not detect a repeated batch.
        copies = self._group_config(writer.key.group_id).errors_deadletterqueue_copy_record_enable
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._try_to_write(writer, letters, copies)
            except (KafkaError, OSError) as error:
                code = error.code if isinstance(error, KafkaError) else None
                if code in UNKNOWN_PRODUCER_ERRORS:
                    writer.producer = None
                elif code is not None and not code.retriable:
                    writer.producer = None
                    self._count(self.counts.failed_batches, writer)
                    self._give_up(writer, letters, _describe(error))
                    return
                if writer.closed:
                    return
                if attempt == ATTEMPTS_MAX:
                    writer.producer = None
                    self._count(self.counts.failed_batches, writer)
                    raise ShareGroupDLQError(
                        f"{attempt} attempts failed, the last one with: {_describe(error)}"
                    ) from error
            else:
                self._count(self.counts.written, writer, record_count(letters))
                writer.archive(letters)
                return
            await trio.sleep(backoff.next())

    def _give_up(
        self, writer: DeadLetterWriter, letters: Sequence[DeadLetters], reason: str
    ) -> None:
        self._count(self.counts.lost, writer, record_count(letters))
        writer.give_up(letters, reason)

    def _count(self, counts: Counter[str], writer: DeadLetterWriter, number: int = 1) -> None:
        self.counts.add(counts, writer.key.group_id, number)

    async def _try_to_write(
        self, writer: DeadLetterWriter, letters: list[DeadLetters], copies: bool
    ) -> None:
        """Write a batch once. Records that do not fit are moved from `letters` to the queue.

        Raises:
            ShareGroupDLQError: The settings do not permit the write.
            KafkaError: The error of the write.
            OSError: The leader did not respond.
        """
        destination = await self._destination(writer.key)
        leader = destination.leader
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        producer = await self._producer_for(writer, destination)
        slots = self._slots.setdefault(leader, FairSlots(BATCHES_MAX))
        async with slots.taken(writer):
            # The topic or its settings may have changed during the wait.
            destination = await self._destination(writer.key)
            is_same = destination.topic_partition == producer.topic_partition
            if writer.closed or not is_same or destination.leader != leader:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            records = await DutyCycle().finish(
                self._records(writer, letters, destination, copies=copies)
            )
            batch = memoryview(
                encode_batch(
                    records,
                    producer_id=producer.id,
                    producer_epoch=0,
                    base_sequence=producer.next_sequence,
                )
            )
            del records
            self._count(self.counts.produced_batches, writer)
            if leader == self._context.node_id:
                await self._append(destination, batch)
            else:
                await self._produce(destination, leader, batch)
            next_sequence = producer.next_sequence + record_count(letters)
            writer.producer = producer._replace(next_sequence=next_sequence)

    # -- settings

    def _group_config(self, group_id: str) -> GroupConfig:
        own = self._context.cluster.own_configs(ConfigResource(ResourceType.GROUP, group_id))
        return GroupConfig.stored(own, self._context.config)

    async def _destination(self, key: SharePartitionKey) -> _Destination:
        """Return the partition for the dead letters of a share partition; create its topic.

        Raises:
            ShareGroupDLQError: The settings do not permit the write.
            KafkaError: The topic could not be created.
        """
        context = self._context
        name = self._group_config(key.group_id).errors_deadletterqueue_topic_name
        self._check_topic_name(name)
        topic = context.cluster.topics.get(name)
        if topic is None:
            topic = await self._create_topic(name, key.group_id)
        config = TopicConfig.stored(topic.configs, context.config)
        if not config.errors_deadletterqueue_group_enable:
            raise ShareGroupDLQError(
                f"topic {name} is not enabled as a dead-letter queue; set "
                "errors.deadletterqueue.group.enable=true for the topic"
            )
        index = key.partition % len(topic.partitions)
        return _Destination(topic, index, config.max_message_bytes)

    def _check_topic_name(self, name: str) -> None:
        """Check the name of a dead-letter queue topic.

        Raises:
            ShareGroupDLQError: The name is empty, reserved, or lacks the required prefix.
        """
        prefix = self._context.config.errors_deadletterqueue_topic_name_prefix
        if not name:
            raise ShareGroupDLQError("errors.deadletterqueue.topic.name is not set for the group")
        if name.startswith("__"):
            raise ShareGroupDLQError(f"topic name {name} starts with '__'; use another name")
        if not name.startswith(prefix):
            raise ShareGroupDLQError(
                f"topic name {name} does not start with {prefix}, the value of "
                "errors.deadletterqueue.topic.name.prefix"
            )

    async def _create_topic(self, name: str, group_id: str) -> Topic:
        context = self._context
        if not context.config.errors_deadletterqueue_auto_create_topics_enable:
            raise ShareGroupDLQError(
                f"topic {name} does not exist; create it, or set "
                "errors.deadletterqueue.auto.create.topics.enable=true"
            )
        cause = f"dead-letter queue of group {group_id}"
        new = NewTopic(name, configs=TOPIC_CONFIGS)
        try:
            return await create_topic(context.cluster, context.config, new, cause=cause)
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and name in context.cluster.topics:
                return context.cluster.topics[name]
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS or error.code.retriable:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message) from error
            raise ShareGroupDLQError(f"cannot create topic {name}: {_describe(error)}") from error

    async def _producer_for(self, writer: DeadLetterWriter, destination: _Destination) -> _Producer:
        if (
            writer.producer is None
            or writer.producer.topic_partition != destination.topic_partition
            or writer.producer.next_sequence > SEQUENCE_MAX - BATCH_RECORDS_MAX
        ):
            producer_id = await self._producer_ids.next()
            writer.producer = _Producer(producer_id, destination.topic_partition, 0)
        return writer.producer

    # -- records

    def _records(
        self,
        writer: DeadLetterWriter,
        letters: list[DeadLetters],
        destination: _Destination,
        *,
        copies: bool,
    ) -> Generator[Wanted, None, list[Record]]:
        """Return the records of a batch, and move those that do not fit back to the queue."""
        records: list[Record] = []
        source, now_ms = writer.source, self._context.clock.log_ms()
        copied: CopiedRecords | None = None
        size_max = left = destination.batch_bytes_max - HEADER_SIZE
        for each, offset in offsets_of(letters):
            original = None
            if copies:
                if copied is None or not copied.first <= offset < copied.end:
                    copied = yield from self._copy(writer, offset, destination)
                original = copied.records.get(offset)
            record = source.record(each, offset, original, now_ms)
            if original is not None and size_bound(record) > size_max:
                record = source.record(each, offset, None, now_ms)
            left -= size_bound(record)
            if left < 0 and records:
                writer.put_back(letters, offset)
                break
            records.append(record)
            if len(records) % RECORDS_PER_STEP == 0:
                yield None
        return records

    def _copy(
        self, writer: DeadLetterWriter, offset: int, destination: _Destination
    ) -> Generator[Wanted, None, CopiedRecords]:
        """Read records from the log, beginning at an offset. Records that cannot be read lack."""
        nothing = CopiedRecords(offset, offset + 1, {})
        log = writer.replica.log
        try:
            with self._partitions.storage_errors_reported(writer.replica):
                batch = yield from self._context.disk_reads.in_pieces(
                    partial(_batch_at, log, offset)
                )
        except KafkaError:
            return nothing
        if batch is None or batch.header.base_offset > offset:
            return nothing
        begin = partial(
            copy_records,
            batch.data,
            batch.header,
            offset,
            destination.batch_bytes_max,
            log.config.produce_rules,
        )
        found = yield from self._context.batch_reads.in_pieces(begin, writer.key, ignore_cpu_time)
        return found or nothing

    # -- writes

    async def _append(self, destination: _Destination, batch: memoryview) -> None:
        """Append a batch to a partition that this node leads, and wait until it is committed.

        Raises:
            KafkaError: The batch was rejected or not committed in time.
        """
        now_ms = self._context.clock.log_ms()
        rules = self._replica(destination).log.config.produce_rules
        validator = LogValidator(batch, PRODUCE_VERSION, now_ms, rules)
        stored, header = await DutyCycle().finish(_validate(validator))
        replica = self._replica(destination)
        with self._partitions.storage_errors_reported(replica):
            appended = replica.append_produced(stored, header, now_ms, all_in_sync=True)
        end = appended.last_offset + 1
        if replica.log.high_watermark >= end:
            return
        outcome: list[bool] = []
        ended = trio.Event()

        def committed(is_committed: bool) -> None:
            outcome.append(is_committed)
            ended.set()

        replica.commits.add(end, committed)
        with trio.move_on_after(PRODUCE_TIMEOUT_MS / 1000):
            await ended.wait()
        if not outcome:
            raise KafkaError(replica.timeout_error())
        if not outcome[0]:
            raise KafkaError(replica.failure())

    def _replica(self, destination: _Destination) -> Replica:
        """Return a partition that this node leads, unless its topic was deleted during an await.

        Raises:
            KafkaError: The partition does not exist, is offline, or has another leader.
        """
        topic = self._context.cluster.topics.get(destination.topic.name)
        if topic is None or topic.id != destination.topic.id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._partitions.replica(topic, destination.partition)

    async def _produce(self, destination: _Destination, leader: int, batch: memoryview) -> None:
        """Send a batch to the leader of its partition.

        Raises:
            KafkaError: The leader rejected the batch.
            OSError: The leader did not respond.
        """
        cls, topic = ProduceRequest, destination.topic
        rows = [cls.Partition(index=destination.partition, records=batch)]
        request = cls(
            acks=ALL_IN_SYNC,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[cls.Topic(name=topic.name, topic_id=topic.id, partition_data=rows)],
        )
        response = await self._peers.ask(leader, request)
        assert isinstance(response, ProduceResponse)
        for each in response.responses:
            for row in each.partition_responses:
                if row.error_code:
                    raise KafkaError(ErrorCode(row.error_code), row.error_message)


def _batch_at(log: Log, offset: int, reading: Reading) -> StoredBatch | None:
    return reading(batch_since, log, TIMESTAMP_MIN, offset)


def _validate(validator: LogValidator) -> Generator[Wanted, None, tuple[memoryview, BatchHeader]]:
    while not validator.step():
        yield None
    return validator.result()


def _describe(error: Exception) -> str:
    if isinstance(error, KafkaError):
        return f"{error.code.name}: {error.message}" if error.message else error.code.name
    return str(error)
