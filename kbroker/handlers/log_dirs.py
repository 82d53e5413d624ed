"""DescribeLogDirs, AlterReplicaLogDirs: log directories and their replicas (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kbroker.security.acls import AclOperation
from kbroker.storage.manager import LogManager

from .context import Context
from .deduplicate import distinct_partitions
from .registry import handles

Row = DescribeLogDirsResponse.Partition


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions="0-5", read_only=True)
async def describe_log_dirs(
    ctx: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """List each log directory with its replicas.

    Null selects all partitions; unknown partitions are omitted. A replica that is moving is listed
    in both directories, in the new one as a future replica.

    Versions: 3 has an error code, 4 the disk space (KIP-827), 5 the cordoned directories
    (KIP-1066).

    Differs from Kafka: a directory that is read-only has KAFKA_STORAGE_ERROR, but still lists its
    replicas, because they can be read. In Kafka it is offline with all of them.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as error:
        return DescribeLogDirsResponse(error_code=error.code)
    rows: dict[str, dict[str, list[Row]]] = {
        each.data_dir: {} for each in ctx.node.partitions.logs.managers
    }
    requested = await _requested_partitions(ctx, request)
    async for name, indexes in ctx.time_slice.each(requested.items()):
        async for index in ctx.time_slice.each(indexes):
            for path, row in _rows_by_log_dir(ctx, name, index):
                rows[path].setdefault(name, []).append(row)
    return DescribeLogDirsResponse(
        results=[
            _directory_row(ctx, each, rows[each.data_dir])
            for each in ctx.node.partitions.logs.managers
        ]
    )


async def _requested_partitions(
    ctx: Context, request: DescribeLogDirsRequest
) -> Mapping[str, Iterable[int]]:
    if request.topics is None:
        topics = ctx.node.cluster.topics.values()
        return {topic.name: range(len(topic.partitions)) for topic in topics}
    return await distinct_partitions(
        ctx.time_slice, ((row.topic, row.partitions) for row in request.topics)
    )


def _rows_by_log_dir(ctx: Context, name: str, index: int) -> Iterable[tuple[str, Row]]:
    """Yield the log directory of a partition with its row, then the directory that it moves to."""
    logs = ctx.node.partitions.logs
    if ctx.node.cluster.partition(name, index) is None:
        return
    try:
        directory = logs.where(name, index)
        size = directory.size_of(name, index)
    except KafkaError:  # an offline directory lists nothing
        return
    yield directory.data_dir, Row(partition_index=index, partition_size=size)
    future = logs.future(name, index)
    if future is not None:
        yield (
            future.data_dir,
            Row(
                partition_index=index,
                partition_size=future.log.segments.size,
                offset_lag=future.lag,
                is_future_key=True,
            ),
        )


def _directory_row(
    ctx: Context, directory: LogManager, rows: dict[str, list[Row]]
) -> DescribeLogDirsResponse.Dir:
    answer = DescribeLogDirsResponse.Dir(
        log_dir=directory.data_dir,
        is_cordoned=directory.data_dir in ctx.node.partitions.logs.cordoned,
    )
    try:
        answer.total_bytes, answer.usable_bytes = directory.usage()
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    if directory.read_only_reason is not None:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    answer.topics = [
        DescribeLogDirsResponse.Topic(name=name, partitions=parts) for name, parts in rows.items()
    ]
    return answer


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions="0-2")
async def alter_replica_log_dirs(
    ctx: Context, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin to move replicas to other log directories; DescribeLogDirs shows the progress.

    Naming the current directory of a replica cancels its move. As in Kafka, if several directories
    are named for one replica, the last one counts.
    """
    topics: dict[str, dict[int, str]] = {}
    async for directory in ctx.time_slice.each(request.dirs):
        async for topic in ctx.time_slice.each(directory.topics):
            topics.setdefault(topic.name, {}).update(
                dict.fromkeys(topic.partitions, directory.path)
            )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.Topic(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirsResponse.Partition(
                        partition_index=index, error_code=_begin_move(ctx, name, index, path)
                    )
                    async for index, path in ctx.time_slice.each(paths.items())
                ],
            )
            async for name, paths in ctx.time_slice.each(topics.items())
        ]
    )


def _begin_move(ctx: Context, name: str, index: int, path: str) -> ErrorCode:
    try:
        ctx.require_cluster(AclOperation.ALTER)
        ctx.node.maintenance.log_dir_mover.begin(name, index, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
