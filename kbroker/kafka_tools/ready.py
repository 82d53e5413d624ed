"""cub kafka-ready: wait until so many brokers are there, as Confluent's images do."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, refuse, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

RETRY_BACKOFF_SECONDS = 0.2


def main(words: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("cub", "kbroker health --wait")
    parser.add_argument("verb", choices=("kafka-ready", "zk-ready"))
    parser.add_argument("more", nargs="*")
    parser.add_argument("-b", dest="bootstrap_server", metavar="HOST:PORT")
    parser.add_argument("-c", dest="command_config", metavar="FILE")
    parser.ignored("-z", "-s")
    options = parser.parse_intermixed_args(words)
    if options.verb == "zk-ready":
        return  # there is none, so nobody has to wait for it
    try:
        options.brokers, options.seconds = map(int, options.more)
    except ValueError:
        parser.error("give the number of brokers and seconds: cub kafka-ready -b HOST:PORT 1 40")
    run(parser, options, lambda cluster: _wait(cluster, options), lambda text: say(text, err=True))


async def _wait(cluster: ClusterClient, options: Namespace) -> None:
    import trio

    from kbroker.client.errors import ClientError

    give_up_at = time.monotonic() + options.seconds
    why = "none answers"
    while True:
        try:
            found = len((await cluster.metadata([])).brokers)
            why = f"there are {found}"
            if found >= options.brokers:
                return
        except (ClientError, OSError) as error:
            why = str(error)
        if time.monotonic() > give_up_at:
            refuse(f"Expected {options.brokers} brokers within {options.seconds} s: {why}")
        await trio.sleep(RETRY_BACKOFF_SECONDS)
