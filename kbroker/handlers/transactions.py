"""APIs of idempotent and transactional producers, and WriteTxnMarkers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kbroker.cluster import INTERNAL_TOPICS, OFFSETS_TOPIC
from kbroker.coordinator import has_complete_producer, hash_partition
from kbroker.coordinator.transactions.transaction import TopicPartition
from kbroker.coordinator_runtime.shards import ShardPending, outcome_of
from kbroker.partitions.waiters import Pending
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.protocol.records import Marker
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import CLUSTER, AclOperation, AclResourceType, Resource

from .context import TOPIC, Context
from .deduplicate import distinct_partitions
from .registry import handles

# Last version of AddPartitionsToTxn that clients send; brokers send newer ones (KIP-890).
LAST_OF_CLIENTS = 3
# First versions of AddPartitionsToTxn and EndTxn with transaction protocol 2 (KIP-890).
FIRST_ADD_WITH_PROTOCOL_2, FIRST_END_WITH_PROTOCOL_2 = 5, 5


@handles(ApiKey.INIT_PRODUCER_ID, versions="0-5")
def init_producer_id(ctx: Context, request: InitProducerIdRequest) -> Later[InitProducerIdResponse]:
    """Return a producer ID and epoch.

    Without a transactional ID, the producer ID is new in the cluster. With a transactional ID, the
    epoch is bumped. An open transaction is aborted first, and the client must retry.

    Versions: 3 can name the producer ID to continue with (KIP-360), 4 knows PRODUCER_FENCED.
    """
    if request.transactional_id is None:
        return _new_id(ctx, request)
    return _init_transactional(ctx, request, request.transactional_id)


async def _new_id(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _check_may_be_idempotent(ctx)
        if not has_complete_producer(request):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        producer_id = await ctx.node.transactions.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _check_may_be_idempotent(ctx: Context) -> None:
    """Require WRITE on any topic, or IDEMPOTENT_WRITE on the cluster (KIP-679)."""
    authorizer = ctx.node.authorizer
    if authorizer is not None and not authorizer.allows_any(
        ctx.peer.client, AclOperation.WRITE, AclResourceType.TOPIC
    ):
        ctx.require_cluster(AclOperation.IDEMPOTENT_WRITE)


async def _init_transactional(
    ctx: Context, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    service = ctx.node.transactions
    rejected = InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
    try:
        ctx.require_transaction(AclOperation.WRITE, transactional_id)
        new_id = await service.new_id_for(transactional_id)
        shard = service.shard(transactional_id)
    except KafkaError as error:
        rejected.error_code = error.code
        return rejected
    host = ctx.client_info().host
    result = shard.coordinator.init_producer_id(request, new_id, service.now(), host)
    stored = service.run(shard, result)
    response: InitProducerIdResponse | None = await outcome_of(stored)
    if response is None:
        response = rejected
        response.error_code = ErrorCode.NOT_COORDINATOR
    response.error_code = _adapt_error(response.error_code, ctx.version >= 4)
    return response


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-5")
async def add_partitions_to_txn(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction. If one is unknown, add none.

    Versions: 2 knows PRODUCER_FENCED. 4 is for brokers, which send several transactions and can
    request verification only (KIP-890).
    """
    if ctx.version <= LAST_OF_CLIENTS:
        asked = AddPartitionsToTxnRequest.Transaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        addition = await _begin_addition(ctx, asked)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await addition.rows(knows_fenced=ctx.version >= 2)
        )
    try:
        ctx.require_cluster(AclOperation.CLUSTER_ACTION)
    except KafkaError as error:
        return AddPartitionsToTxnResponse(error_code=error.code)
    additions = [
        await _begin_addition(ctx, each) async for each in ctx.time_slice.each(request.transactions)
    ]
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResponse.Transaction(
                transactional_id=addition.asked.transactional_id,
                topic_results=await addition.rows(knows_fenced=True),
            )
            async for addition in ctx.time_slice.each(additions)
        ]
    )


async def _begin_addition(ctx: Context, asked: AddPartitionsToTxnRequest.Transaction) -> _Addition:
    addition = _Addition(ctx, asked)
    await addition.begin()
    return addition


class _Addition:
    """Addition or verification of the partitions of one transaction."""

    def __init__(self, ctx: Context, asked: AddPartitionsToTxnRequest.Transaction) -> None:
        self.asked = asked
        self._ctx = ctx
        self._topics: dict[str, dict[int, None]] = {}
        self._rejected: dict[TopicPartition, ErrorCode] = {}
        self._code: ErrorCode | ShardPending | None = ErrorCode.NONE
        self._missing: set[TopicPartition] = set()

    async def begin(self) -> None:
        """Perform the addition or verification; `rows` waits for its durability."""
        time_slice, asked = self._ctx.time_slice, self.asked
        named = ((topic.name, topic.partitions) for topic in asked.topics)
        self._topics = await distinct_partitions(time_slice, named)
        try:
            if self._ctx.version <= LAST_OF_CLIENTS:
                self._ctx.require_transaction(AclOperation.WRITE, asked.transactional_id)
        except KafkaError as error:
            self._code = error.code
            return
        partitions = []
        async for partition in time_slice.each(self._partitions()):
            partitions.append(partition)
            code = _partition_error(self._ctx, partition)
            if code:
                self._rejected[partition] = code
        if self._rejected:
            return
        service = self._ctx.node.transactions
        try:
            shard = service.shard(asked.transactional_id)
        except KafkaError as error:
            self._code = error.code
            return
        producer = asked.transactional_id, asked.producer_id, asked.producer_epoch
        if asked.verify_only:
            async for partition in time_slice.each(partitions):
                code = shard.coordinator.verify(*producer, partition)
                if code == ErrorCode.TRANSACTION_ABORTABLE:
                    self._missing.add(partition)
                else:
                    self._code = code
            return
        second = self._ctx.version >= FIRST_ADD_WITH_PROTOCOL_2
        result = shard.coordinator.add(*producer, partitions, service.now(), second_protocol=second)
        self._code = service.run(shard, result)

    def _partitions(self) -> Iterator[TopicPartition]:
        for name, indexes in self._topics.items():
            for index in indexes:
                yield name, index

    async def rows(self, *, knows_fenced: bool) -> list[AddPartitionsToTxnResponse.Topic]:
        """Return the outcome of each partition."""
        code = _adapt_error(await outcome_of(self._code), knows_fenced)
        return [
            AddPartitionsToTxnResponse.Topic(
                name=name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.Partition(
                        partition_index=index,
                        partition_error_code=self._outcome((name, index), code),
                    )
                    async for index in self._ctx.time_slice.each(indexes)
                ],
            )
            async for name, indexes in self._ctx.time_slice.each(self._topics.items())
        ]

    def _outcome(self, partition: TopicPartition, code: ErrorCode) -> ErrorCode:
        if partition in self._rejected:
            return self._rejected[partition]
        if self._rejected:
            return ErrorCode.OPERATION_NOT_ATTEMPTED
        if partition in self._missing:
            return ErrorCode.TRANSACTION_ABORTABLE
        return code


def _partition_error(ctx: Context, partition: TopicPartition) -> ErrorCode:
    """Return the error of a partition that cannot be added to a transaction, or NONE."""
    name, index = partition
    if ctx.version <= LAST_OF_CLIENTS and not (
        name not in INTERNAL_TOPICS and ctx.allows(AclOperation.WRITE, Resource(TOPIC, name))
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if ctx.node.cluster.partition(name, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4")
async def add_offsets_to_txn(
    ctx: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the group's partition of `__consumer_offsets` to a transaction.

    Versions: 2 knows PRODUCER_FENCED.
    """
    service = ctx.node.transactions
    try:
        ctx.require_transaction(AclOperation.WRITE, request.transactional_id)
        ctx.require_group(AclOperation.READ, request.group_id)
        offsets = await ctx.node.groups.create_topic()
        shard = service.shard(request.transactional_id)
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    partition = OFFSETS_TOPIC, hash_partition(request.group_id, len(offsets.partitions))
    result = shard.coordinator.add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        service.now(),
        second_protocol=False,
    )
    added = service.run(shard, result)
    return AddOffsetsToTxnResponse(
        error_code=_adapt_error(await outcome_of(added), ctx.version >= 2)
    )


@handles(ApiKey.END_TXN, versions="0-5")
async def end_txn(ctx: Context, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort a transaction.

    The response is sent when all partitions have their marker and consumers can read the committed
    records.

    Versions: 2 knows PRODUCER_FENCED; 5 bumps the epoch and returns the new one (KIP-890).

    Differs from Kafka: Kafka responds when the decision is stored, and writes the markers later.
    """
    service = ctx.node.transactions
    transactional_id = request.transactional_id
    try:
        ctx.require_transaction(AclOperation.WRITE, transactional_id)
        new_id = (
            await service.new_id_for(transactional_id)
            if ctx.version >= FIRST_END_WITH_PROTOCOL_2
            else -1
        )
        shard = service.shard(transactional_id)
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    result = shard.coordinator.end(
        transactional_id,
        request.producer_id,
        request.producer_epoch,
        new_id,
        service.now(),
        commit=request.committed,
        second_protocol=ctx.version >= FIRST_END_WITH_PROTOCOL_2,
    )
    ended = service.end(shard, transactional_id, result)
    response = await ended.wait() if isinstance(ended, Pending) else ended
    if response is None:
        return EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
    response.error_code = _adapt_error(response.error_code, ctx.version >= 2)
    return response


@handles(ApiKey.WRITE_TXN_MARKERS, versions="1-2")
async def write_txn_markers(
    ctx: Context, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Append transaction markers to partitions that this node leads.

    Operators abort hanging transactions with this API (KIP-664). A partition that is named several
    times for a marker gets the marker once.

    Versions: 2 has the transaction version (KIP-1228).
    """
    try:
        # Operators have ALTER, brokers have CLUSTER_ACTION (KIP-664).
        if not ctx.allows(AclOperation.ALTER, CLUSTER, is_filter=True):
            ctx.require_cluster(AclOperation.CLUSTER_ACTION)
    except KafkaError as error:
        return await _reject_markers(ctx, request, error.code)
    rows: list[WriteTxnMarkersResponse.Marker] = []
    waits: list[tuple[Pending[bool], WriteTxnMarkersResponse.Partition]] = []
    markers = await _distinct_markers(ctx, request)
    async for each, topics in ctx.time_slice.each(markers):
        row = WriteTxnMarkersResponse.Marker(producer_id=each.producer_id)
        rows.append(row)
        async for name, indexes in ctx.time_slice.each(topics.items()):
            partitions = [
                _append_marker(ctx, each, name, index, waits)
                async for index in ctx.time_slice.each(indexes)
            ]
            row.topics.append(WriteTxnMarkersResponse.Topic(name=name, partitions=partitions))
    async for pending, partition in ctx.time_slice.each(waits):
        if not await pending.wait():
            partition.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return WriteTxnMarkersResponse(markers=rows)


async def _reject_markers(
    ctx: Context, request: WriteTxnMarkersRequest, code: ErrorCode
) -> WriteTxnMarkersResponse:
    """Return an error for each partition, because the response has no top-level error."""
    cls = WriteTxnMarkersResponse
    return cls(
        markers=[
            cls.Marker(
                producer_id=each.producer_id,
                topics=[
                    cls.Topic(
                        name=topic.name,
                        partitions=[
                            cls.Partition(partition_index=index, error_code=code)
                            async for index in ctx.time_slice.each(topic.partition_indexes)
                        ],
                    )
                    async for topic in ctx.time_slice.each(each.topics)
                ],
            )
            async for each in ctx.time_slice.each(request.markers)
        ]
    )


async def _distinct_markers(
    ctx: Context, request: WriteTxnMarkersRequest
) -> Iterable[tuple[WriteTxnMarkersRequest.Marker, dict[str, dict[int, None]]]]:
    """Return the distinct markers of a request with their distinct partitions."""
    markers: dict[Any, tuple[WriteTxnMarkersRequest.Marker, list[Any]]] = {}
    async for each in ctx.time_slice.each(request.markers):
        key = (
            each.producer_id,
            each.producer_epoch,
            each.transaction_result,
            each.coordinator_epoch,
            each.transaction_version,
        )
        markers.setdefault(key, (each, []))[1].extend(each.topics)
    return [
        (
            each,
            await distinct_partitions(
                ctx.time_slice, ((topic.name, topic.partition_indexes) for topic in topics)
            ),
        )
        async for each, topics in ctx.time_slice.each(markers.values())
    ]


def _append_marker(
    ctx: Context,
    asked: WriteTxnMarkersRequest.Marker,
    topic: str,
    index: int,
    waits: list[tuple[Pending[bool], WriteTxnMarkersResponse.Partition]],
) -> WriteTxnMarkersResponse.Partition:
    row = WriteTxnMarkersResponse.Partition(partition_index=index)
    marker = Marker(asked.transaction_result, asked.coordinator_epoch)
    try:
        replica = ctx.node.transactions.append_marker(
            (topic, index),
            marker,
            asked.producer_id,
            asked.producer_epoch,
            is_bumped=asked.transaction_version >= 2,
        )
    except KafkaError as error:
        row.error_code = error.code
        return row
    if replica.log.high_watermark < replica.log.log_end_offset:
        pending: Pending[bool] = Pending()
        replica.commits.add(replica.log.log_end_offset, pending.resolve)
        waits.append((pending, row))
    return row


def _adapt_error(code: int | None, is_known: bool) -> ErrorCode:
    """Map an error code to one that the client knows. None means that the coordinator changed."""
    if code is None:
        return ErrorCode.NOT_COORDINATOR
    if code == ErrorCode.PRODUCER_FENCED and not is_known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode(code)
