"""The kafka-broker-api-versions tool: prints the API versions of each broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient


# Highest version of each API in the tool of Kafka 4.4. The table avoids the slow import of all
# message declarations; a test compares it with them.
# fmt: off
NEWEST: Mapping[int, int] = {
    0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5,
    17: 1, 18: 5, 19: 7, 20: 6, 21: 2, 22: 6, 23: 4, 24: 5, 25: 4, 26: 5, 27: 2, 28: 6, 29: 3,
    30: 3, 31: 3, 32: 4, 33: 2, 34: 2, 35: 5, 36: 2, 37: 3, 38: 3, 39: 2, 40: 2, 41: 3, 42: 3,
    43: 2, 44: 1, 45: 1, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 55: 2, 57: 2, 60: 2, 61: 0,
    64: 0, 65: 0, 66: 2, 68: 1, 69: 1, 71: 0, 72: 0, 74: 1, 75: 0, 76: 1, 77: 1, 78: 2, 79: 2,
    80: 1, 81: 0, 83: 0, 84: 0, 85: 1, 86: 0, 87: 1, 88: 1, 89: 1, 90: 1, 91: 0, 92: 0, 93: 0,
    94: 0,
}
# fmt: on


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-broker-api-versions", "kbroker cluster info")
    run(parser, parser.parse_args(arguments), _work, lambda text: say(text, err=True))


async def _work(cluster: ClusterClient) -> None:
    answer = await cluster.metadata([])
    for row in sorted(answer.brokers, key=lambda row: row.node_id):
        versions = (await cluster.node(row.node_id)).versions
        rack = row.rack or "null"
        say(f"{row.host}:{row.port} (id: {row.node_id} rack: {rack} isFenced: false) -> (")
        say(*_lines(versions), keep="\t")
        say(")")


def _lines(versions: Mapping[int, tuple[int, int]]) -> Iterator[str]:
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
        yield f"{name}{served} [usable: {min(last, NEWEST[key])}]{end}"
