"""Commits of a query's offsets to a consumer group, so that Kafka tools show its lag."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .client import create_client, settings
from .offsets import Offsets, named

logger = logging.getLogger(__name__)


class GroupCommits:
    """Client that commits offsets to a group without joining it; Spark still uses its checkpoint.

    If a commit fails, for example because the group has members, it is logged and kept in
    `last_error`; the query continues.

    Args:
        group: Consumer group.
        kafka: The ``kafka.*`` options without the prefix.

    Attributes:
        group: Consumer group.
        last_error: Message of the last commit if it failed, otherwise None.

    Raises:
        OptionError: A client option is invalid.
    """

    def __init__(self, group: str, kafka: Mapping[str, str]) -> None:
        self.group = group
        self.last_error: str | None = None
        self._committed: Offsets = {}
        self._consumer = create_client(
            Consumer, settings(kafka) | {"group.id": group, "enable.auto.commit": False}
        )

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets that changed since the last successful commit."""
        new = {
            each: offset for each, offset in offsets.items() if self._committed.get(each) != offset
        }
        if not new:
            return
        try:
            answers = self._consumer.commit(
                offsets=[TopicPartition(*each, offset) for each, offset in new.items()],
                asynchronous=False,
            )
        except KafkaException as error:
            return self._record_failure(error.args[0].str(), new)
        if refused := [each for each in answers if each.error]:
            return self._record_failure(refused[0].error.str(), new)
        self._committed |= new
        self.last_error = None

    def _record_failure(self, why: str, offsets: Offsets) -> None:
        if why != self.last_error:
            partitions = named(offsets)
            logger.warning(
                "could not commit offsets of %s to group %s: %s", partitions, self.group, why
            )
        self.last_error = why

    def close(self) -> None:
        """Close the Kafka client."""
        self._consumer.close()
