"""The kafka-cluster tool: prints the cluster ID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-cluster", "kbroker cluster")
    parser.add_argument("verb")
    parser.add_argument("--config", dest="command_config")
    options = parser.parse_args(arguments)
    if options.verb != "cluster-id":
        parser.exit_with_message(f"{options.verb} is not supported")
    run(parser, options, _work, lambda text: say(text, err=True))


async def _work(cluster: ClusterClient) -> None:
    say(f"Cluster ID: {(await cluster.metadata([])).cluster_id}")
