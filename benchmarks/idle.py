"""Memory of idle connections."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

from kbroker.protocol.api_keys import ApiKey
from tests.wire import request

from .brokers import Broker
from .lines import Line
from .rows import CONNECTIONS, Sample
from .turns import Record, is_wanted, recorded

ROW = "idle connections"
# Connections that are opened before the measurement, so that the broker has loaded its code.
WARM_UP_CONNECTIONS = 200
METADATA_VERSION = 1
QUIET_SECONDS = 2


def idle_connections(
    options: argparse.Namespace, kinds: Mapping[str, type[Broker]]
) -> Iterator[Record]:
    """Yield the resident memory per connection of newly started brokers; without fsync."""
    if not is_wanted(ROW, options):
        return
    durable = options.durable[0]
    for repeat in range(options.repeat):
        for name in options.brokers:
            broker = kinds[name](options.directory / f"{kinds[name].name}-idle", durable=durable)
            try:
                sample = Sample(ROW, _bytes_of_each(broker, max(CONNECTIONS)) / 1e3)
            finally:
                broker.stop()
            yield recorded(sample, broker.name, durable, repeat)


def _bytes_of_each(broker: Broker, count: int) -> float:
    """Return the memory growth per connection that has sent one request and is now idle."""
    with ExitStack() as stack:

        def connect(count: int) -> int:
            for _ in range(count):
                line = stack.enter_context(closing(Line(broker)))
                line.ask(ApiKey.METADATA, METADATA_VERSION, request(ApiKey.METADATA, topics=[]))
            time.sleep(QUIET_SECONDS)
            return broker.resident_bytes()

        before = connect(WARM_UP_CONNECTIONS)
        return (connect(count) - before) / count
