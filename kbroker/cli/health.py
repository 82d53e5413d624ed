"""The `kbroker health` command: checks that a broker responds on its Kafka port."""

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
    help=f"Address of the broker.  [env: {ENVIRONMENT}; default: {DEFAULTS[BROKERS]}]",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    default="0",
    metavar="TIME",
    help="Retry for up to this time until the broker responds, for example 30s.",
)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a client setting of Kafka, such as security.protocol or ssl.truststore.location; can "
    "be given several times.",
)
def health(bootstrap: str | None, wait_seconds: float, settings: tuple[str, ...]) -> None:
    """Check that a broker responds. Exit status 0 if it does, else 1."""
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
        # Exit with 1 instead of 2: container health checks reserve status 2.
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
            say(f"{bootstrap} does not respond: {error}; is `kbroker serve` running?", err=True)
            sys.exit(1)
        brokers = len(metadata.brokers)
        say(f"{bootstrap} responds: cluster {metadata.cluster_id}, {brokers} broker(s)")
        return
