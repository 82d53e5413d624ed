"""`kbroker health`: does a broker answer? Works over the Kafka port alone."""

from __future__ import annotations

import sys
import time
from functools import partial

import click

from .output import say
from .target import BROKERS, DEFAULTS, ENVIRONMENT, parse_settings, settings_of
from .units import DURATION

RETRY_BACKOFF_SECONDS = 0.1


@click.command()
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT",
    help=f"Where the broker listens.  [env: {ENVIRONMENT}; default: {DEFAULTS[BROKERS]}]",
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
def health(bootstrap: str | None, wait_seconds: float, settings: tuple[str, ...]) -> None:
    """Ask a broker whether it answers. Exit status 0 when it does, else 1."""
    import trio

    from kbroker.client import check_round_trip
    from kbroker.client.endpoint import Endpoint
    from kbroker.protocol.compile import DecodeError

    given = (click.get_current_context().find_root().obj or {}) | parse_settings(settings)
    if bootstrap is not None:
        given[BROKERS] = bootstrap
    try:
        found, security = settings_of(given)
        bootstrap = found[BROKERS].partition(",")[0]
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
                time.sleep(RETRY_BACKOFF_SECONDS)
                continue
            say(f"{bootstrap} does not answer: {error}; is `kbroker serve` running?", err=True)
            sys.exit(1)
        brokers = len(metadata.brokers)
        say(f"{bootstrap} answers: cluster {metadata.cluster_id}, {brokers} broker(s)")
        return
