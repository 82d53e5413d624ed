"""The kafka-get-offsets tool: prints offsets of partitions by time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, exit_with_message, match_names, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition

# Names of special times, and their values in ListOffsets requests.
TIMES = {"latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4}
NO_MATCH = "Error occurred: Could not match any topic-partitions with the specified filters"


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-get-offsets", "kbroker topic describe")
    parser.add_values("--topic", "--partitions", "--topic-partitions")
    parser.add_argument("--time", default="latest")
    parser.add_flags("--exclude-internal-topics")
    parser.add_ignored("--offsets", "--max-wait-ms")  # before Kafka 3.0
    options = parser.parse_args(arguments)
    if options.topic_partitions and (options.topic or options.partitions):
        parser.error("--topic-partitions excludes --topic and --partitions")
    text = options.time
    if text not in TIMES and not text.removeprefix("-").isdecimal():
        parser.exit_with_message(f"--time {text} is not supported")
    options.at = TIMES[text] if text in TIMES else int(text)
    run(parser, options, lambda cluster: _work(cluster, options), _failed)


def _failed(text: str) -> None:
    say(f"Error occurred: {text}", err=True)


async def _work(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.list_offsets import list_offsets

    partitions = await _selected_partitions(cluster, options)
    if not partitions:
        exit_with_message(NO_MATCH)
    found = await list_offsets(cluster, dict.fromkeys(partitions, options.at))
    say(
        *(
            f"{topic}:{index}:{found[topic, index].offset}"
            for topic, index in sorted(found)
            if found[topic, index].offset >= 0
        )
    )


async def _selected_partitions(cluster: ClusterClient, options: Namespace) -> list[Partition]:
    rows = (await cluster.metadata()).topics
    existing = {
        row.name or "": [each.partition_index for each in row.partitions]
        for row in rows
        if not (options.exclude_internal_topics and row.is_internal)
    }
    if options.topic_partitions is None:
        wanted = [(options.topic or ".*", options.partitions or "")]
    else:
        parse_pairs_or_exit = (text.rpartition(":") for text in options.topic_partitions.split(","))
        wanted = [
            (name, rest) if colon else (rest, "") for name, colon, rest in parse_pairs_or_exit
        ]
    chosen = {
        (name, index)
        for pattern, numbers in wanted
        for name in match_names(pattern, existing)
        for index in existing[name]
        if _is_in_list(index, numbers)
    }
    return sorted(chosen)


def _is_in_list(index: int, numbers: str) -> bool:
    """Return True if a partition is in `0,3-5` (end exclusive), or if the list is empty."""
    if not numbers:
        return True
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not dash and index == int(first):
            return True
        if dash and int(first or 0) <= index and (not last or index < int(last)):
            return True
    return False
