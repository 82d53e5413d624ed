"""The kafka-leader-election tool: elects leaders of partitions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import FAILED, Parser, exit_with_message, java_exception_text, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition

PREFERRED, UNCLEAN = "preferred", "unclean"


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-leader-election", "kbroker cluster rebalance")
    parser.add_argument("--admin.config", dest="command_config", help=argparse.SUPPRESS)
    parser.add_argument("--election-type", type=str.lower, choices=[PREFERRED, UNCLEAN])
    parser.add_values("--topic", "--path-to-json-file")
    parser.add_argument("--partition", type=int)
    parser.add_flags("--all-topic-partitions")
    options = parser.parse_args(arguments)
    if options.election_type is None:
        parser.error('Missing required argument "[election-type]"')
    given = (options.topic, options.path_to_json_file, options.all_topic_partitions or None)
    if sum(each is not None for each in given) != 1:
        parser.error("give one of --all-topic-partitions, --topic and --path-to-json-file")
    if (options.topic is None) != (options.partition is None):
        parser.error("--topic and --partition need each other")
    run(parser, options, lambda cluster: _work(cluster, options), lambda text: say(text, err=True))


def _read(path: str) -> list[Partition]:
    """Read the partitions of the file. Exit if it is invalid."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["partitions"]
        return [(str(row["topic"]), int(row["partition"])) for row in rows]
    except OSError:
        exit_with_message(f"Unable to read file {path}")
    except (ValueError, TypeError, KeyError):
        exit_with_message("Replica election data is not valid JSON with a list of partitions")


async def _partitions(cluster: ClusterClient, options: argparse.Namespace) -> Sequence[Partition]:
    if options.topic is not None:
        return [(options.topic, options.partition)]
    if options.path_to_json_file is not None:
        return _read(options.path_to_json_file)
    topics = (await cluster.metadata()).topics
    return [
        (topic.name or "", each.partition_index) for topic in topics for each in topic.partitions
    ]


async def _work(cluster: ClusterClient, options: argparse.Namespace) -> None:
    from kbroker.client.moves import elect_leader
    from kbroker.protocol.errors import ErrorCode, KafkaError

    kind = options.election_type.upper()
    elected, valid, failed = [], [], 0
    for topic, index in await _partitions(cluster, options):
        name = f"{topic}-{index}"
        try:
            await elect_leader(cluster, (topic, index), unclean=options.election_type == UNCLEAN)
        except KafkaError as error:
            if error.code == ErrorCode.ELECTION_NOT_NEEDED:
                valid.append(name)
                continue
            failed += 1
            reason = java_exception_text(error.code, error.message)
            say(f"Error completing leader election ({kind}) for partition: {name}: {reason}")
        else:
            elected.append(name)
    if elected:
        names = ", ".join(elected)
        say(f"Successfully completed leader election ({kind}) for partitions {names}")
    if valid:
        say(f"Valid replica already elected for partitions {', '.join(valid)}")
    if failed:
        say(f"{failed} replica(s) could not be elected", err=True)
        raise SystemExit(FAILED)
