"""Creation of the topics and seed records of the command line, before the broker is ready."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbroker.broker import Broker
from kbroker.cluster.topics import DEFAULT, NewTopic

from .topic_creation import create

logger = logging.getLogger(__name__)


async def create_bootstrap_topics(
    broker: Broker, topics: Iterable[NewTopic], seeds: Iterable[str]
) -> None:
    """Create topics, then write the records of seed files.

    Existing topics are not changed.

    Args:
        broker: The broker.
        topics: Topics to create.
        seeds: Paths of seed files.

    Raises:
        StartFailed: A topic cannot be created, or a seed file cannot be read or written.
    """
    for new in topics:
        known = broker.node.cluster.topics.get(new.name)
        if known is None:
            await create(broker, new, f"--topic {new.name}")
        elif len(known.partitions) != new.partitions != DEFAULT or new.configs:
            logger.warning(
                "--topic %s: the topic exists with %d partitions and is not changed",
                new.name,
                len(known.partitions),
            )
    for path in seeds:
        from .seeding import write_seed  # imported here: most starts need no client

        written = await write_seed(broker, path)
        logger.info("wrote %d records of %s", written, path)
