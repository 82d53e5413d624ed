"""`kbroker health`: does a broker answer? Works over the Kafka port alone."""

from __future__ import annotations

import sys
import time
from functools import partial

import click

from .output import say
from .target import parse_settings, security_of
from .units import DURATION

RETRY_SECONDS = 0.1


@click.command()
@click.option(
    "--bootstrap",
    envvar="KBROKER_BOOTSTRAP",
    default="localhost:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the broker listens.",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    default="0",
    metavar="TIME",
    help="Keep asking this long until it answers, for example 30s.",
)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set security.protocol, ssl.truststore.location, ... as Kafka's clients have them.",
)
def health(bootstrap: str, wait_seconds: float, settings: tuple[str, ...]) -> None:
    """Ask a broker whether it answers. Exit status 0 when it does, else 1."""
    import trio

    from kbroker.client import check_round_trip
    from kbroker.client.endpoint import Endpoint
    from kbroker.protocol.compile import DecodeError

    security = security_of(parse_settings(settings))
    try:
        endpoint = Endpoint.parse(bootstrap)
    except ValueError as error:
        # Not the usual 2 of a wrong option: containers reserve that status.
        say(f"--bootstrap: {error}", err=True)
        sys.exit(1)
    give_up_at = time.monotonic() + wait_seconds
    while True:
        try:
            metadata = trio.run(partial(check_round_trip, *endpoint, security=security))
        except (OSError, DecodeError) as error:
            if time.monotonic() < give_up_at:
                time.sleep(RETRY_SECONDS)
                continue
            say(f"{bootstrap} does not answer: {error}; is `kbroker serve` running?", err=True)
            sys.exit(1)
        brokers = len(metadata.brokers)
        say(f"{bootstrap} answers: cluster {metadata.cluster_id}, {brokers} broker(s)")
        return
