"""Offsets of a query in a Kafka group, for everything that shows lag by group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .client import made, settings
from .offsets import Offsets, named

logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits to a group without joining it; Spark's checkpoint stays what counts.

    Parameters: `kafka` are the ``kafka.*`` options without that prefix.

    Resource handling: `close` ends its client.

    Error handling: a commit that fails, for instance because the group has members, is logged and
    kept in `last_error`; a query does not fail for it.
    """

    def __init__(self, group: str, kafka: Mapping[str, str]) -> None:
        self.group = group
        self.last_error: str | None = None
        self._committed: Offsets = {}
        self._consumer = made(
            Consumer, settings(kafka) | {"group.id": group, "enable.auto.commit": False}
        )

    def commit(self, offsets: Offsets) -> None:
        """Commit what has changed since the last time."""
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
            return self._failed(error.args[0].str(), new)
        if refused := [each for each in answers if each.error]:
            return self._failed(refused[0].error.str(), new)
        self._committed |= new
        self.last_error = None

    def _failed(self, why: str, offsets: Offsets) -> None:
        if why != self.last_error:
            partitions = named(offsets)
            logger.warning("%s was not committed to group %s: %s", partitions, self.group, why)
        self.last_error = why

    def close(self) -> None:
        """End the client."""
        self._consumer.close()
