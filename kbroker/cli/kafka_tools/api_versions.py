"""kafka-broker-api-versions: what each broker serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient


def main(words: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-broker-api-versions", "kbroker cluster info")
    run(parser, parser.parse_args(words), _work, lambda text: say(text, err=True))


async def _work(cluster: ClusterClient) -> None:
    answer = await cluster.metadata([])
    for row in sorted(answer.brokers, key=lambda row: row.node_id):
        versions = (await cluster.node(row.node_id)).versions
        rack = row.rack or "null"
        say(f"{row.host}:{row.port} (id: {row.node_id} rack: {rack} isFenced: false) -> (")
        say(*_lines(versions), keep="\t")
        say(")")


def _lines(versions: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    from kbroker.protocol import messages
    from kbroker.protocol.api_keys import ApiKey

    keys = sorted(ApiKey)
    for key in keys:
        end = "" if key == keys[-1] else ","
        name = f"\t{ApiKey(key).api_name}({int(key)}): "
        if key not in versions:
            yield f"{name}UNSUPPORTED{end}"
            continue
        first, last = versions[key]
        served = f"{first} to {last}" if last > first else str(first)
        yield f"{name}{served} [usable: {min(last, messages.request_class(key).VERSIONS[-1])}]{end}"
