"""Creation of a topic at startup, with an error message that names the option."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.protocol.errors import KafkaError

from .errors import StartFailed


async def create(broker: Broker, new: NewTopic, what: str) -> None:
    """Create a topic.

    Args:
        broker: The broker.
        new: The topic.
        what: The option that declares it, for errors.

    Raises:
        StartFailed: The topic cannot be created.
    """
    try:
        node = broker.node
        await create_topic(node.cluster, node.config, new, cause="declared at the start")
    except KafkaError as error:
        raise StartFailed(f"{what}: {error.message or error}") from None
