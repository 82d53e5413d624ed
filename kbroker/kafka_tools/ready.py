"""The `cub kafka-ready` tool of Confluent's images: waits for a number of brokers."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import say

from .base import Parser, exit_with_message, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

RETRY_BACKOFF_SECONDS = 0.2


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("cub", "kbroker health --wait")
    parser.add_argument("verb", choices=("kafka-ready", "zk-ready"))
    parser.add_argument("more", nargs="*")
    parser.add_argument("-b", dest="bootstrap_server", metavar="HOST:PORT")
    parser.add_argument("-c", dest="command_config", metavar="FILE")
    parser.add_ignored("-z", "-s")
    options = parser.parse_intermixed_args(arguments)
    if options.verb == "zk-ready":
        return  # there is no ZooKeeper to wait for
    try:
        options.brokers, options.seconds = map(int, options.more)
    except ValueError:
        parser.error("give a number of brokers and a timeout: cub kafka-ready -b HOST:PORT 1 40")
    run(parser, options, lambda cluster: _wait(cluster, options), lambda text: say(text, err=True))


async def _wait(cluster: ClusterClient, options: Namespace) -> None:
    import trio

    from kbroker.client.errors import ClientError

    give_up_at = time.monotonic() + options.seconds
    reason = "no broker responds"
    while True:
        try:
            found = len((await cluster.metadata([])).brokers)
            reason = f"found {found}"
            if found >= options.brokers:
                return
        except (ClientError, OSError) as error:
            reason = str(error)
        if time.monotonic() > give_up_at:
            exit_with_message(
                f"Expected {options.brokers} brokers within {options.seconds} s: {reason}"
            )
        await trio.sleep(RETRY_BACKOFF_SECONDS)
