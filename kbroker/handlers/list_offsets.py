"""ListOffsets and OffsetForLeaderEpoch: offsets of logs by position, time and leader epoch."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from kbroker.partitions.replica import Replica
from kbroker.partitions.time_lookups import TimeLookup
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kbroker.runtime.batch_reads import ignore_cpu_time
from kbroker.runtime.time_slices import Later, Wanted
from kbroker.security.acls import CLUSTER, AclOperation

from .context import Context
from .registry import handles

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
READ_COMMITTED = 1
# First version of the API that knows each special timestamp.
FIRST_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING: 11,
}
FIRST_VERSION_OF_NOT_AVAILABLE = 5


class _Requested(NamedTuple):
    """Request row of a partition, and True if the request names the partition more than once."""

    row: ListOffsetsRequest.Partition
    twice: bool


class _Found(NamedTuple):
    """Offset, timestamp and leader epoch of a record; -1 if there is none."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


@handles(ApiKey.LIST_OFFSETS, versions="0-11", read_only=True)
def list_offsets(
    ctx: Context, request: ListOffsetsRequest
) -> ListOffsetsResponse | Later[ListOffsetsResponse]:
    """Return the earliest or latest offset of logs, or the first offset at or after a timestamp.

    A new leader whose high watermark may be behind that of its predecessor returns
    OFFSET_NOT_AVAILABLE for the latest offset, before version 5 LEADER_NOT_AVAILABLE (KIP-207).

    Versions: 0 returns the base offsets of segments *before* a timestamp. 2 adds read_committed,
    for which the latest offset is the last stable offset. 4 adds leader epochs. A partition with
    a special timestamp that the version does not know gets UNSUPPORTED_VERSION.
    """
    return ctx.time_slice.run(_list_all(ctx, request))


def _list_all(
    ctx: Context, request: ListOffsetsRequest
) -> Generator[Wanted, None, ListOffsetsResponse]:
    asked: dict[str, dict[int, _Requested]] = {}
    for topic in request.topics:
        rows = asked.setdefault(topic.name, {})
        yield None
        for row in topic.partitions:
            index = row.partition_index
            rows[index] = _Requested(row, twice=index in rows)
            yield None
    response = ListOffsetsResponse()
    for name, rows in asked.items():
        answer = ListOffsetsResponse.Topic(name=name)
        response.topics.append(answer)
        yield None
        for row, twice in rows.values():
            answer.partitions.append((yield from _list_one(ctx, request, name, row, twice=twice)))
            yield None
    return response


def _list_one(
    ctx: Context,
    request: ListOffsetsRequest,
    name: str,
    partition: ListOffsetsRequest.Partition,
    *,
    twice: bool,
) -> Generator[Wanted, None, ListOffsetsResponse.Partition]:
    row = ListOffsetsResponse.Partition(partition_index=partition.partition_index)
    try:
        ctx.require_topic(AclOperation.DESCRIBE, name)
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        _check_timestamp(partition.timestamp, ctx.version)
        replica = ctx.node.partitions.named_replica(name, partition.partition_index)
        replica.check_epoch(partition.current_leader_epoch)
        if ctx.version == 0:
            row.old_style_offsets = _offsets_before(replica, partition, ctx.node.clock.log_ms())
            return row
        committed_only = request.isolation_level == READ_COMMITTED
        with ctx.node.partitions.storage_errors_reported(replica):
            found = yield from _find_offset(ctx, replica, partition.timestamp, committed_only)
    except KafkaError as error:
        row.error_code = error.code
        if (
            error.code == ErrorCode.OFFSET_NOT_AVAILABLE
            and ctx.version < FIRST_VERSION_OF_NOT_AVAILABLE
        ):
            row.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        return row
    row.offset, row.timestamp, row.leader_epoch = found
    return row


def _check_timestamp(timestamp: int, version: int) -> None:
    """Raise UNSUPPORTED_VERSION for a special timestamp that the version does not know."""
    if timestamp < 0 and version < FIRST_VERSION.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _find_offset(
    ctx: Context, replica: Replica, timestamp: int, committed_only: bool
) -> Generator[Wanted, None, _Found]:
    log = replica.log
    if timestamp == LATEST:
        _check_end_is_known(replica)
        end = log.last_stable_offset if committed_only else log.high_watermark
        return _Found(end, leader_epoch=replica.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _Found(log.log_start_offset, leader_epoch=_epoch_at_start(replica))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return _Found()
    limit = log.last_stable_offset if committed_only else log.high_watermark
    lookup = _new_lookup(ctx, replica)
    if timestamp == MAX_TIMESTAMP:
        newest = yield from lookup.latest_record(log)
        found = newest if newest and newest.offset < limit else None
    else:
        found = yield from lookup.record_since(log, timestamp, limit)
    if found is None:
        _check_end_is_known(replica)
        return _Found()
    return _Found(*found)


def _new_lookup(ctx: Context, replica: Replica) -> TimeLookup:
    def check() -> None:
        if replica.closed:
            raise KafkaError(replica.failure())

    context = ctx.node.context
    charge = ignore_cpu_time if ctx.quota_charge is None else ctx.quota_charge.add_thread_time
    return TimeLookup(context.disk_reads, context.batch_reads, ctx.peer, charge, check)


def _check_end_is_known(replica: Replica) -> None:
    """Check that the high watermark includes everything that earlier leaders committed."""
    if not replica.is_high_watermark_current:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)


def _epoch_at_start(replica: Replica) -> int:
    """Return the epoch of the log's first record, or the leader epoch if the log is empty."""
    epoch = replica.log.epochs.epoch_at(replica.log.log_start_offset)
    return epoch if epoch >= 0 else replica.leader_epoch


def _offsets_before(
    replica: Replica, partition: ListOffsetsRequest.Partition, now_ms: int
) -> list[int]:
    """Return the base offsets of segments not newer than a timestamp, newest first (version 0).

    The log end offset counts as the base offset of a segment created now (KIP-79).
    """
    log = replica.log
    segments = list(log.segments)
    begins = [(max(each.base_offset, log.log_start_offset), each.latest_ms) for each in segments]
    if not segments or segments[-1].size:
        begins.append((log.log_end_offset, now_ms))
    if partition.timestamp == EARLIEST:
        begins = begins[:1]
    elif partition.timestamp != LATEST:
        # As in Kafka, drop newer segments from the end only.
        while begins and begins[-1][1] > partition.timestamp:
            begins.pop()
    most = max(partition.max_num_offsets, 0)
    offsets = [offset for offset, _ in reversed(begins)][:most]
    visible = [offset for offset in offsets if offset <= log.high_watermark]
    return offsets if len(visible) == len(offsets) else [log.high_watermark, *visible]


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="0-4", read_only=True)
async def offset_for_leader_epoch(
    ctx: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return the largest epoch up to the requested one, and its end offset (KIP-101, KIP-320)."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.Topic(
                topic=topic.topic,
                partitions=[
                    _epoch_end(ctx, topic.topic, row)
                    async for row in ctx.time_slice.each(topic.partitions)
                ],
            )
            async for topic in ctx.time_slice.each(request.topics)
        ]
    )


def _epoch_end(
    ctx: Context, name: str, row: OffsetForLeaderEpochRequest.Partition
) -> OffsetForLeaderEpochResponse.Partition:
    answer = OffsetForLeaderEpochResponse.Partition(partition=row.partition)
    try:
        if not ctx.allows(AclOperation.CLUSTER_ACTION, CLUSTER, is_filter=True):
            ctx.require_topic(AclOperation.DESCRIBE, name)
        replica = ctx.node.partitions.named_replica(name, row.partition)
        replica.check_epoch(row.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = replica.end_of_epoch(row.leader_epoch)
    except KafkaError as error:
        answer.error_code = error.code
    return answer
