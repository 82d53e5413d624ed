"""The `kbroker health` command: checks that a broker responds on its Kafka port."""

from __future__ import annotations

import sys
import time
from functools import partial

import click

from .confirmation import count_of
from .output import say
from .target import Given, cluster_options, fail, settings_of
from .units import DURATION

RETRY_BACKOFF_SECONDS = 0.1


@click.command()
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    default="0",
    metavar="TIME",
    help="Retry for up to this time until the broker responds, for example 30s.",
)
@cluster_options
def health(given: Given, wait_seconds: float) -> None:
    """Check that a broker responds. Exit status 0 if it does, else 1."""
    import trio

    from kbroker.client import check_round_trip
    from kbroker.client.errors import (
        AUTHENTICATION_GUIDE,
        CannotConnect,
        HandshakeFailed,
        LoginRejected,
        TlsExpected,
    )
    from kbroker.protocol.compile import DecodeError

    from .hints import error_text

    found = settings_of(given)
    try:
        endpoint = found.addresses[0]
    except click.BadParameter as error:
        # Exit with 1 instead of 2: container health checks reserve status 2.
        fail(error.format_message())
    give_up_at = time.monotonic() + wait_seconds
    while True:
        try:
            metadata = trio.run(partial(check_round_trip, *endpoint, security=found.security))
        except (OSError, DecodeError) as error:
            if time.monotonic() < give_up_at:
                time.sleep(RETRY_BACKOFF_SECONDS)
                continue
            if isinstance(error, LoginRejected):
                fail(f"{endpoint} rejects this client: {error}; see {AUTHENTICATION_GUIDE}")
            if isinstance(error, HandshakeFailed | TlsExpected):
                reason = str(error) if isinstance(error, HandshakeFailed) else f"it {error}"
                explained = error_text(CannotConnect(reason, is_handshake=True))
                fail(f"{endpoint} does not respond: {explained}")
            say(f"{endpoint} does not respond: {error}; is `kbroker serve` running?", err=True)
            sys.exit(1)
        brokers = count_of(len(metadata.brokers), "broker")
        say(f"{endpoint} responds: cluster {metadata.cluster_id}, {brokers}")
        return
