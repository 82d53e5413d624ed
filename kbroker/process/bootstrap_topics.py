"""Topics and records that the command line declares; they exist before the broker is ready."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbroker.broker import Broker
from kbroker.cluster.topics import DEFAULT, NewTopic

from .topic_creation import create

logger = logging.getLogger(__name__)


async def declare(broker: Broker, topics: Iterable[NewTopic], seeds: Iterable[str]) -> None:
    """Create topics, then write the records of seed files.

    Topics that are there stay as they are. Raises StartFailed.
    """
    for new in topics:
        known = broker.node.cluster.topics.get(new.name)
        if known is None:
            await create(broker, new, f"--topic {new.name}")
        elif len(known.partitions) != new.partitions != DEFAULT or new.configs:
            logger.warning(
                "--topic %s: the topic exists with %d partitions and stays as it is",
                new.name,
                len(known.partitions),
            )
    for path in seeds:
        from .seeding import write_seed  # a client of the broker; most starts need none

        written = await write_seed(broker, path)
        logger.info("%d records of %s written", written, path)
