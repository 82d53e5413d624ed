"""DescribeLogDirs, AlterReplicaLogDirs: data folders, and what lies in them (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kbroker.registry import handles
from kbroker.slices import Slices
from kbroker.storage.manager import LogManager

Row = DescribeLogDirsResponse.Partition


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions="0-5")
async def describe_log_dirs(
    ctx: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Behaviour: each data folder with the partitions in it; null asks for all, unknown ones are
    left out. A replica that moves stands in both folders, as a future one where it goes.

    Versions: 3 has an error code, 4 the room on the disk (KIP-827), 5 says which folders take no
    new partitions (KIP-1066).
    """
    rows: dict[str, dict[str, list[Row]]] = {each.data_dir: {} for each in ctx.node.logs.managers}
    slices = Slices()
    for name, index in _asked(ctx, request):
        await slices.pause()
        for path, row in _places(ctx, name, index):
            rows[path].setdefault(name, []).append(row)
    return DescribeLogDirsResponse(
        results=[_folder(ctx, each, rows[each.data_dir]) for each in ctx.node.logs.managers]
    )


def _asked(ctx: Context, request: DescribeLogDirsRequest) -> Iterable[tuple[str, int]]:
    cluster = ctx.node.cluster
    if request.topics is None:
        every = [(topic.name, range(len(topic.partitions))) for topic in cluster.topics.values()]
        asked = [(name, index) for name, indexes in every for index in indexes]
    else:
        asked = [(row.topic, index) for row in request.topics for index in row.partitions]
    return [key for key in dict.fromkeys(asked) if cluster.partition(*key) is not None]


def _places(ctx: Context, name: str, index: int) -> Iterable[tuple[str, Row]]:
    """Where a partition lies, and where it is on its way to."""
    logs = ctx.node.logs
    try:
        folder = logs.where(name, index)
        size = folder.size_of(name, index)
    except KafkaError:  # a folder that is offline shows nothing
        return
    yield folder.data_dir, Row(partition_index=index, partition_size=size)
    future = logs.future(name, index)
    if future is not None:
        yield (
            future.data_dir,
            Row(
                partition_index=index,
                partition_size=future.log.size,
                offset_lag=future.lag,
                is_future_key=True,
            ),
        )


def _folder(
    ctx: Context, folder: LogManager, rows: dict[str, list[Row]]
) -> DescribeLogDirsResponse.Dir:
    answer = DescribeLogDirsResponse.Dir(
        log_dir=folder.data_dir, is_cordoned=folder.data_dir in ctx.node.logs.cordoned
    )
    try:
        answer.total_bytes, answer.usable_bytes = folder.usage()
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    answer.topics = [
        DescribeLogDirsResponse.Topic(name=name, partitions=parts) for name, parts in rows.items()
    ]
    return answer


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions="0-2")
def alter_replica_log_dirs(
    ctx: Context, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Behaviour: begins to move replicas to the folders named; DescribeLogDirs shows how far they
    are. The folder where a replica is ends its move.
    """
    topics: dict[str, AlterReplicaLogDirsResponse.Topic] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            answer = topics.setdefault(
                topic.name, AlterReplicaLogDirsResponse.Topic(topic_name=topic.name)
            )
            answer.partitions += [
                AlterReplicaLogDirsResponse.Partition(
                    partition_index=index, error_code=_begin(ctx, topic.name, index, folder.path)
                )
                for index in topic.partitions
            ]
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _begin(ctx: Context, name: str, index: int, path: str) -> ErrorCode:
    try:
        ctx.node.moves.begin(name, index, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
