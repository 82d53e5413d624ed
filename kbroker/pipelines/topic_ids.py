"""Topic IDs, which show that a topic was deleted and created again during a job."""

from __future__ import annotations

import trio

from kbroker.client.cluster import RETRY_BACKOFF_SECONDS, ClusterClient
from kbroker.client.consumer import AWAY_SECONDS
from kbroker.client.errors import CannotConnect, ClientError, NotReachable
from kbroker.client.topic_details import id_text
from kbroker.protocol.messages.metadata import MetadataResponse


def topic_id_of(row: MetadataResponse.Topic) -> str:
    """Return the topic ID; empty if the brokers have no topic IDs."""
    return id_text(row.topic_id) or ""


async def check_topic_id(cluster: ClusterClient, topic: str, expected: str) -> None:
    """Check that a topic still has the ID that a job has found.

    Args:
        cluster: Client of the cluster.
        topic: Name of the topic.
        expected: Earlier topic ID; if it is empty, nothing is checked.

    Raises:
        ClientError: The topic was deleted or created again, or no broker responds.
    """
    if not expected:
        return
    row = await _look_up(cluster, topic)
    if (found := topic_id_of(row)) != expected:
        raise ClientError(
            f"topic {topic} was deleted and created again: its ID was {expected} and is now {found}"
        )


async def _look_up(cluster: ClusterClient, topic: str) -> MetadataResponse.Topic:
    """Return the metadata of a topic; wait for brokers that are restarted. Raises ClientError."""
    failing_since: float | None = None
    while True:
        try:
            (row,) = await cluster.topics([topic])
        except (OSError, CannotConnect, NotReachable):
            now = trio.current_time()
            failing_since = now if failing_since is None else failing_since
            if now - failing_since > AWAY_SECONDS:
                raise
        else:
            return row
        await trio.sleep(RETRY_BACKOFF_SECONDS)
