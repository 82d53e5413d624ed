"""The kafka-delete-records tool: deletes records before given offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli.output import say, say_before_change

from .base import Parser, exit_with_message, java_exception_text, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-delete-records", "kbroker topic trim")
    parser.add_values("--offset-json-file")
    options = parser.parse_args(arguments)
    if options.offset_json_file is None:
        parser.error('Missing required argument "[offset-json-file]"')
    offsets = _read(options.offset_json_file)
    run(parser, options, lambda cluster: _work(cluster, offsets), lambda text: say(text, err=True))


def _read(path: str) -> dict[Partition, int]:
    """Read the file: the new log start offset of each partition. Exit if it is invalid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        exit_with_message(f"Unable to read file {path}")
    try:
        rows = [
            ((str(row["topic"]), int(row["partition"])), int(row["offset"]))
            for row in json.loads(text)["partitions"]
        ]
    except (ValueError, TypeError, KeyError):
        exit_with_message("The input string is not a valid JSON")
    offsets = dict(rows)
    if len(offsets) < len(rows):
        names = [f"{topic}-{index}" for (topic, index), _ in rows]
        duplicates = ",".join(dict.fromkeys(each for each in names if names.count(each) > 1))
        exit_with_message(f"Offset json file contains duplicate topic partitions: {duplicates}")
    return offsets


async def _work(cluster: ClusterClient, offsets: dict[Partition, int]) -> None:
    from kbroker.client.topics import delete_records
    from kbroker.protocol.errors import ErrorCode

    say_before_change("Executing records delete operation")
    existing = {
        (topic.name or "", each.partition_index)
        for topic in (await cluster.metadata()).topics
        for each in topic.partitions
    }
    known = {each: offset for each, offset in offsets.items() if each in existing}
    found = await delete_records(cluster, known)
    say("Records delete operation completed:")
    for one in offsets:
        code, start = found.get(one, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
        outcome = f"error: {java_exception_text(code, None)}" if code else f"low_watermark: {start}"
        say(f"partition: {one[0]}-{one[1]}\t{outcome}", keep="\t")
