"""The topic `_schemas`: read into the store, and written by one node at a time.

A node that is going to write asks for an epoch of the writers' transactional id, and writes a record that
says nothing under it. From then on the leader of the partition refuses what nodes with older epochs
send, so that what this node has read up to there is all that there is, until another node does the same. A
write that is refused is planned anew. Nothing is answered that was not acknowledged by all replicas in sync
and read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

import trio

from kbroker.client.cluster import TRANSACTION, ClusterClient
from kbroker.client.consumer import FOREVER, Read, reading
from kbroker.client.errors import ClientError, NoSuchTopic, error_code
from kbroker.client.list_offsets import LATEST, offsets_at
from kbroker.client.producer import Identity, Producer
from kbroker.client.topics import NewTopic, create_topics, wait_until_ready
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import Record

from .core.errors import STORE_FAILED, RegistryError, schema_too_large
from .core.records import LAST_ID, Entry, noop, read_entry
from .core.registry import Planned
from .core.store import SchemaStore

logger = logging.getLogger(__name__)

TOPIC = "_schemas"
PARTITION = TOPIC, 0
HEADERS_LOOKED_AT = 64
"""Maximum number of headers of a record that are searched; kbroker writes one."""
REPLICAS_MAX = 3
WRITERS = "kbroker-schema-registry"
"""The transactional id that all nodes share."""
TRANSACTION_TIMEOUT_MS = 60_000
RETRY_BACKOFF_SECONDS = 0.1
READ_BYTES_MAX = 64 * 1024
"""At a time: what is read is taken in at one go, and clients of the node wait meanwhile."""
TRIES_MAX = 20
"""How often a write is planned, while other nodes write too."""
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
_AWAY = (OSError, ClientError, KafkaError)

T = TypeVar("T")
Plan: TypeAlias = Callable[[SchemaStore], Planned[T]]


class SchemaTopic:
    """What one node knows of the topic. `run` reads it as soon as there is one."""

    def __init__(self, cluster: ClusterClient, now_ms: Callable[[], int]) -> None:
        self.store = SchemaStore()
        self._cluster = cluster
        self._now_ms = now_ms
        self._position = 0
        self._moved = trio.Event()
        self._writing = trio.Lock()
        self._identity: Identity | None = None
        self._exists = trio.Event()

    async def run(self) -> None:
        """Read what others and this node write."""
        await self._exists.wait()
        while True:
            try:
                async with reading(
                    self._cluster,
                    {PARTITION: (self._position, FOREVER)},
                    bytes_max=READ_BYTES_MAX,
                ) as channel:
                    async for reads in channel:
                        self._take(reads)
            except ClientError as error:
                if isinstance(error, NoSuchTopic) or error_is_out_of_range(error):
                    self._begin_anew()
                logger.info("the topic of the schemas cannot be read now: %s", error)
            except (OSError, KafkaError) as error:
                logger.info("the topic of the schemas cannot be read now: %s", error)
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    def _begin_anew(self) -> None:
        """Somebody has deleted the topic."""
        self.store, self._position, self._identity = SchemaStore(), 0, None

    def _take(self, reads: Sequence[Read]) -> None:
        for _, record, *_ in reads:
            try:
                last_id = dict(islice(record.headers, HEADERS_LOOKED_AT)).get(LAST_ID)
                self.store.replay(read_entry(record.key, record.value, last_id))
            except (ValueError, KeyError, TypeError) as error:
                logger.warning(
                    "record %d of %s is left out, it makes no sense: %s",
                    record.offset,
                    TOPIC,
                    error,
                )
            self._position = record.offset + 1
        self._moved.set()
        self._moved = trio.Event()

    async def _read_to(self, end: int) -> None:
        while self._position < end:
            await self._moved.wait()

    async def catch_up(self) -> None:
        """Wait until everything has been read that is committed now. Raises RegistryError."""
        try:
            if not await self._is_there():
                return
            offsets = await offsets_at(self._cluster, [PARTITION], LATEST)
        except _AWAY as error:
            raise _failed(error) from error
        await self._read_to(offsets[PARTITION])

    async def _is_there(self) -> bool:
        if not self._exists.is_set():
            answer = await self._cluster.metadata([TOPIC])
            code = error_code(answer.topics[0].error_code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            await wait_until_ready(self._cluster, {TOPIC: 1})
            self._exists.set()
        return True

    async def write(self, plan: Plan[T]) -> T:
        """Write what `plan` makes of the newest state; returns its answer. Raises RegistryError."""
        async with self._writing:
            try:
                for _ in range(TRIES_MAX):
                    try:
                        return await self._try_to_write(plan)
                    except KafkaError as error:
                        self._identity = None
                        if error.code not in _FENCED:
                            raise
                        await trio.sleep(RETRY_BACKOFF_SECONDS)
            except _AWAY as error:
                raise _failed(error) from error
            raise RegistryError(STORE_FAILED, "other nodes write all the time; try again")

    async def _try_to_write(self, plan: Plan[T]) -> T:
        identity = await self._only_writer()
        planned = plan(self.store)
        if planned.entries:
            try:
                await self._append(identity, [*self.store.repairs(), *planned.entries])
            except BaseException:
                # What became of it is not known: with the next epoch nothing of it comes later.
                self._identity = None
                raise
        return planned.answer

    async def _only_writer(self) -> Identity:
        """Be the one that writes, with everything read that others wrote before."""
        if self._identity is None:
            await self._create()
            identity = await self._new_identity()
            await self._append(identity, [noop(self.store.last_id)])
            self._identity = identity
        return self._identity

    async def _append(self, identity: Identity, entries: Sequence[Entry]) -> None:
        now = self._now_ms()
        records = [_record(each, now) for each in entries]
        producer = Producer(self._cluster, identity=identity)
        written = await producer.write({PARTITION: records})
        last = written[-1]
        if last.base_offset < 0:  # it was there already, and nobody says where
            offsets = await offsets_at(self._cluster, [PARTITION], LATEST)
            await self._read_to(offsets[PARTITION])
        else:
            await self._read_to(last.base_offset + len(last.records))

    async def _new_identity(self) -> Identity:
        request = InitProducerIdRequest(
            transactional_id=WRITERS, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        for _ in range(TRIES_MAX):
            coordinator = await self._cluster.coordinator(WRITERS, TRANSACTION)
            answer = await coordinator.ask(request, newest=5)
            code = error_code(answer.error_code)
            if not code:
                return Identity(answer.producer_id, answer.producer_epoch)
            if not code.retriable and code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await trio.sleep(RETRY_BACKOFF_SECONDS)
        raise KafkaError(code)

    async def _create(self) -> None:
        """Make the topic where there is none."""
        if await self._is_there():
            return
        brokers = (await self._cluster.metadata([])).brokers
        topic = NewTopic(
            TOPIC, 1, min(REPLICAS_MAX, len(brokers)), configs={"cleanup.policy": "compact"}
        )
        code, message = (await create_topics(self._cluster, [topic]))[TOPIC]
        if code and code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise KafkaError(code, message)
        await wait_until_ready(self._cluster, {TOPIC: 1})
        self._exists.set()


def error_is_out_of_range(error: ClientError) -> bool:
    """Whether what was read before is no part of the topic any more."""
    return getattr(error, "code", None) == ErrorCode.OFFSET_OUT_OF_RANGE


def _record(entry: Entry, now_ms: int) -> Record:
    headers = [] if entry.last_id is None else [(LAST_ID, b"%d" % entry.last_id)]
    return Record(entry.key_bytes(), entry.value_bytes(), now_ms, headers)


def _failed(error: Exception) -> RegistryError:
    if isinstance(error, KafkaError) and error.code == ErrorCode.MESSAGE_TOO_LARGE:
        return schema_too_large("its record exceeds message.max.bytes")
    return RegistryError(STORE_FAILED, f"Error in the backend data store: {error}")
