"""The kafka-metadata-quorum tool: state of the metadata quorum and its replicas."""

from __future__ import annotations

import base64
import json
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker.cli.output import say

from .base import Parser, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.protocol.messages.quorum import DescribeQuorumResponse

METADATA_TOPIC = "__cluster_metadata"
HEADINGS = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-metadata-quorum", "kbroker cluster info")
    parser.add_argument("command", choices=["describe"])
    parser.add_flags("--status", "--replication", "--human-readable")
    options = parser.parse_args(arguments)
    if options.status == options.replication:
        parser.error("One of --status or --replication must be specified with describe sub-command")
    run(parser, options, lambda cluster: _work(cluster, options), lambda text: say(text, err=True))


async def _work(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.errors import check
    from kbroker.protocol.messages.quorum import DescribeQuorumRequest

    part = DescribeQuorumRequest.Partition(partition_index=0)
    topic = DescribeQuorumRequest.Topic(topic_name=METADATA_TOPIC, partitions=[part])
    answer = await (await cluster.any()).ask(DescribeQuorumRequest(topics=[topic]))
    check(answer.error_code, answer.error_message)
    (row,) = answer.topics[0].partitions
    check(row.error_code, row.error_message)
    if options.replication:
        say(*_replica_table(row, is_human_readable=options.human_readable), keep="\t")
    else:
        cluster_id = (await cluster.metadata([])).cluster_id
        say(*_status_lines(row, answer.nodes, cluster_id or ""))


def _status_lines(
    row: DescribeQuorumResponse.Partition,
    nodes: Sequence[DescribeQuorumResponse.Node],
    cluster_id: str,
) -> list[str]:
    leader = next(each for each in row.current_voters if each.replica_id == row.leader_id)
    followers = [each for each in row.current_voters if each is not leader]
    endpoints = {
        each.node_id: [f"{one.name}://{one.host}:{one.port}" for one in each.listeners]
        for each in nodes
    }
    behind = leader.log_end_offset - min(
        (each.log_end_offset for each in followers), default=leader.log_end_offset
    )
    caught_up = [each.last_caught_up_timestamp for each in followers]
    if -1 in caught_up:
        lag_ms = -1
    else:
        lag_ms = (
            max(leader.last_caught_up_timestamp - min(caught_up, default=0), 0) if caught_up else 0
        )
    return [
        f"ClusterId:              {cluster_id}",
        f"LeaderId:               {row.leader_id}",
        f"LeaderEpoch:            {row.leader_epoch}",
        f"HighWatermark:          {row.high_watermark}",
        f"MaxFollowerLag:         {behind}",
        f"MaxFollowerLagTimeMs:   {lag_ms}",
        f"CurrentVoters:          {_replicas(row.current_voters, endpoints)}",
        f"CurrentObservers:       {_replicas(row.observers, {})}",
    ]


def _replicas(
    replicas: Sequence[DescribeQuorumResponse.Replica], endpoints: dict[int, list[str]]
) -> str:
    shown = []
    for each in replicas:
        parts: dict[str, object] = {"id": each.replica_id}
        if each.replica_directory_id.int:
            parts["directoryId"] = _directory(each.replica_directory_id)
        if each.replica_id in endpoints:
            parts["endpoints"] = endpoints[each.replica_id]
        shown.append(json.dumps(parts))
    return f"[{', '.join(shown)}]"


def _directory(directory_id: UUID) -> str:
    """Return a directory ID in Kafka's notation."""
    return base64.urlsafe_b64encode(directory_id.bytes).rstrip(b"=").decode()


def _replica_table(row: DescribeQuorumResponse.Partition, *, is_human_readable: bool) -> list[str]:
    """Return the table of all replicas, the leader first."""
    leader = next(each for each in row.current_voters if each.replica_id == row.leader_id)
    now_ms = time.time_ns() // 1_000_000

    def time_text(timestamp_ms: int) -> str:
        return f"{now_ms - timestamp_ms} ms ago" if is_human_readable else str(timestamp_ms)

    listed = [("Leader", leader)]
    listed += [("Follower", each) for each in row.current_voters if each is not leader]
    listed += [("Observer", each) for each in row.observers]
    cells = [
        (
            str(each.replica_id),
            _directory(each.replica_directory_id),
            str(each.log_end_offset),
            str(leader.log_end_offset - each.log_end_offset),
            time_text(each.last_fetch_timestamp),
            time_text(each.last_caught_up_timestamp),
            status,
        )
        for status, each in listed
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *cells, strict=True)]
    return [
        "".join(f"{text:<{width}}\t" for text, width in zip(line, widths, strict=True))
        for line in (HEADINGS, *cells)
    ]
