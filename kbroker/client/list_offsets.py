"""Offset lookup by timestamp, or of the earliest and latest offset (ListOffsets)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import trio

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest

from .cluster import RETRY_BACKOFF_SECONDS, ClusterClient
from .errors import ClientError, NotReachable, error_code
from .topics import Partition, by_leader

# Special timestamps of ListOffsets.
LATEST, EARLIEST = -1, -2
NO_LEADER = -1
# How long requests are retried without a leader: longer than an election takes.
RETRY_TIMEOUT_SECONDS = 3


class FoundOffset(NamedTuple):
    """Lookup result of one partition; offset -1 if all records are older than the timestamp."""

    error: ErrorCode
    offset: int
    timestamp: int


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[Partition, int], *, committed: bool = False
) -> dict[Partition, FoundOffset]:
    """Look up offsets; partitions without a leader get LEADER_NOT_AVAILABLE.

    Args:
        cluster: The cluster to query.
        wanted: Timestamp (ms), `LATEST` or `EARLIEST` by partition.
        committed: Use the last stable offset as the latest one.

    Raises:
        NoSuchTopic: A topic does not exist.
    """
    found: dict[Partition, FoundOffset] = {}
    for node_id, owned in (await by_leader(cluster, wanted)).items():
        if node_id == NO_LEADER:
            lost = FoundOffset(ErrorCode.LEADER_NOT_AVAILABLE, -1, -1)
            found.update(dict.fromkeys(owned, lost))
            continue
        rows: dict[str, list[ListOffsetsRequest.Partition]] = {}
        for name, index in owned:
            row = ListOffsetsRequest.Partition(partition_index=index, timestamp=wanted[name, index])
            rows.setdefault(name, []).append(row)
        topics = [ListOffsetsRequest.Topic(name=k, partitions=v) for k, v in rows.items()]
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=int(committed), topics=topics, timeout_ms=30_000
        )
        answer = await (await cluster.node(node_id)).ask(request, oldest=2)
        for topic in answer.topics:
            for part in topic.partitions:
                one = FoundOffset(error_code(part.error_code), part.offset, part.timestamp)
                found[topic.name, part.partition_index] = one
    return found


async def offsets_at(
    cluster: ClusterClient,
    partitions: Iterable[Partition],
    timestamp: int,
    *,
    committed: bool = False,
) -> dict[Partition, int]:
    """Return the offset of one timestamp in each partition; retry while a leader is elected.

    Args:
        cluster: The cluster to query.
        partitions: Partitions to look up.
        timestamp: Timestamp (ms), `LATEST` or `EARLIEST`.
        committed: Use the last stable offset as the latest one.

    Raises:
        ClientError: A partition cannot be read.
    """
    wanted = dict.fromkeys(partitions, timestamp)
    deadline = trio.current_time() + RETRY_TIMEOUT_SECONDS
    while True:
        is_last = trio.current_time() > deadline
        try:
            found = await list_offsets(cluster, wanted, committed=committed)
        except (OSError, NotReachable):
            if is_last:
                raise
        else:
            failed = {each: one.error for each, one in found.items() if one.error}
            if not failed:
                return {partition: one.offset for partition, one in found.items()}
            if is_last or not all(code.retriable for code in failed.values()):
                break
        await trio.sleep(RETRY_BACKOFF_SECONDS)
    (name, index), code = next(iter(failed.items()))
    raise ClientError(
        f"partition {index} of {name}: cannot be read ({code.name})",
        hint="run `kbroker cluster health` for details",
    )
