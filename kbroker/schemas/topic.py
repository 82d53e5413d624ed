"""The topic `_schemas`: replayed into the store, and written by one node at a time.

Before a node writes, it obtains a new epoch of the shared transactional ID and appends a NOOP record
with that epoch. From then on, the partition leader fences writers with older epochs. Once the node
has read up to its NOOP, its state is complete until another node obtains an epoch. A node plans a
fenced write again. A node confirms a write only after all in-sync replicas have acknowledged it and
the node has read it back.

A node renews its epoch after `EPOCH_AGE_MS_MAX`: once the coordinator has expired the transactional
ID, the next node gets another producer ID, which does not fence older ones.
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
from .core.registry import WritePlan
from .core.store import SchemaStore

logger = logging.getLogger(__name__)

TOPIC = "_schemas"
PARTITION = TOPIC, 0
# Maximum number of headers of a record that are searched; kbroker writes one.
HEADERS_MAX = 64
REPLICAS_MAX = 3
# Transactional ID that all nodes share.
TRANSACTIONAL_ID = "kbroker-schema-registry"
TRANSACTION_TIMEOUT_MS = 60_000
RETRY_BACKOFF_SECONDS = 0.1
# Maximum bytes per Fetch: one response is replayed without a checkpoint, which blocks the node.
READ_BYTES_MAX = 64 * 1024
# Maximum number of attempts to write while other nodes write concurrently.
ATTEMPTS_MAX = 20
# Maximum age of an epoch in ms; far below the default `transactional.id.expiration.ms`.
EPOCH_AGE_MS_MAX = 3_600_000
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
_STORE_ERRORS = (OSError, ClientError, KafkaError)

T = TypeVar("T")
Plan: TypeAlias = Callable[[SchemaStore], WritePlan[T]]


class SchemaTopic:
    """One node's replica of the topic. `run` reads the topic as soon as it exists."""

    def __init__(self, cluster: ClusterClient, now_ms: Callable[[], int]) -> None:
        self.store = SchemaStore()
        self._cluster = cluster
        self._now_ms = now_ms
        self._position = 0
        self._advanced = trio.Event()
        self._writing = trio.Lock()
        self._identity: Identity | None = None
        self._identity_from_ms = 0
        self._exists = trio.Event()

    async def run(self) -> None:
        """Replay new records of all nodes forever."""
        while True:
            await self._exists.wait()
            try:
                async with reading(
                    self._cluster,
                    {PARTITION: (self._position, FOREVER)},
                    bytes_max=READ_BYTES_MAX,
                ) as channel:
                    async for reads in channel:
                        self._replay_records(reads)
            except ClientError as error:
                if isinstance(error, NoSuchTopic):
                    self._exists = trio.Event()
                if isinstance(error, NoSuchTopic) or error_is_out_of_range(error):
                    self._reset()
                logger.info("cannot read topic _schemas, will retry: %s", error)
            except (OSError, KafkaError) as error:
                logger.info("cannot read topic _schemas, will retry: %s", error)
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    def _reset(self) -> None:
        """Discard all state, because the topic was deleted."""
        self.store, self._position, self._identity = SchemaStore(), 0, None
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._advanced.set()
        self._advanced = trio.Event()

    def _replay_records(self, reads: Sequence[Read]) -> None:
        for _, record, *_ in reads:
            try:
                last_id = dict(islice(record.headers, HEADERS_MAX)).get(LAST_ID)
                self.store.replay(read_entry(record.key, record.value, last_id))
            except (ValueError, KeyError, TypeError) as error:
                logger.warning(
                    "ignoring malformed record %d of %s: %s",
                    record.offset,
                    TOPIC,
                    error,
                )
            self._position = record.offset + 1
        self._wake_readers()

    async def _read_to(self, end: int, store: SchemaStore) -> None:
        """Wait until `store` contains the records before `end`.

        Raises:
            ClientError: The records of `store` were deleted.
        """
        while self.store is store and self._position < end:
            await self._advanced.wait()
        if self.store is not store:
            raise ClientError(f"topic {TOPIC} was deleted")

    async def catch_up(self) -> None:
        """Wait until this node has read everything that is committed now. Raises RegistryError."""
        try:
            if not await self._topic_exists():
                return
            store = self.store
            offsets = await offsets_at(self._cluster, [PARTITION], LATEST)
            await self._read_to(offsets[PARTITION], store)
        except _STORE_ERRORS as error:
            raise _store_error(error) from error

    async def _topic_exists(self) -> bool:
        if not self._exists.is_set():
            response = await self._cluster.metadata([TOPIC])
            code = error_code(response.topics[0].error_code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            await wait_until_ready(self._cluster, {TOPIC: 1})
            self._exists.set()
        return True

    async def write(self, plan: Plan[T]) -> T:
        """Write the records that `plan` creates from the newest state.

        Args:
            plan: Returns the records and the response; called again if another node wrote first.

        Returns:
            The response of the plan.

        Raises:
            RegistryError: The plan raised it, or the topic cannot be written.
        """
        async with self._writing:
            try:
                for _ in range(ATTEMPTS_MAX):
                    try:
                        return await self._try_to_write(plan)
                    except KafkaError as error:
                        self._identity = None
                        if error.code not in _FENCED:
                            raise
                        await trio.sleep(RETRY_BACKOFF_SECONDS)
            except _STORE_ERRORS as error:
                raise _store_error(error) from error
            raise RegistryError(STORE_FAILED, "other nodes are writing continuously; try again")

    async def _try_to_write(self, plan: Plan[T]) -> T:
        identity = await self._acquire_epoch()
        planned = plan(self.store)
        if planned.entries:
            try:
                await self._append(identity, [*self.store.repairs(), *planned.entries])
            except BaseException:
                # The outcome is unknown; a new epoch fences any records still in flight.
                self._identity = None
                raise
        return planned.response

    async def _acquire_epoch(self) -> Identity:
        """Return an identity that fences all other writers, after reading all earlier writes."""
        now = self._now_ms()
        if self._identity is None or not 0 <= now - self._identity_from_ms < EPOCH_AGE_MS_MAX:
            await self._create_topic()
            self._identity, self._identity_from_ms = None, now
            identity = await self._request_identity()
            await self._append(identity, [noop(self.store.last_id)])
            self._identity = identity
        return self._identity

    async def _append(self, identity: Identity, entries: Sequence[Entry]) -> None:
        now = self._now_ms()
        store, records = self.store, [_record(each, now) for each in entries]
        producer = Producer(self._cluster, identity=identity)
        written = await producer.write({PARTITION: records})
        last = written[-1]
        if last.base_offset < 0:  # a duplicate: the response has no offset
            offsets = await offsets_at(self._cluster, [PARTITION], LATEST)
            await self._read_to(offsets[PARTITION], store)
        else:
            await self._read_to(last.base_offset + len(last.records), store)

    async def _request_identity(self) -> Identity:
        request = InitProducerIdRequest(
            transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        for _ in range(ATTEMPTS_MAX):
            coordinator = await self._cluster.coordinator(TRANSACTIONAL_ID, TRANSACTION)
            response = await coordinator.ask(request, newest=5)
            code = error_code(response.error_code)
            if not code:
                return Identity(response.producer_id, response.producer_epoch)
            if not code.retriable and code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await trio.sleep(RETRY_BACKOFF_SECONDS)
        raise KafkaError(code)

    async def _create_topic(self) -> None:
        """Create the topic if it does not exist."""
        if await self._topic_exists():
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
    """Return True if the topic no longer contains the requested offset."""
    return getattr(error, "code", None) == ErrorCode.OFFSET_OUT_OF_RANGE


def _record(entry: Entry, now_ms: int) -> Record:
    headers = [] if entry.last_id is None else [(LAST_ID, b"%d" % entry.last_id)]
    return Record(entry.key_bytes(), entry.value_bytes(), now_ms, headers)


def _store_error(error: Exception) -> RegistryError:
    if isinstance(error, KafkaError) and error.code == ErrorCode.MESSAGE_TOO_LARGE:
        return schema_too_large("its record exceeds message.max.bytes")
    return RegistryError(STORE_FAILED, f"Error in the backend data store: {error}")
