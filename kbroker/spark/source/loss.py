"""Records that are gone before they were read: failOnDataLoss says what happens then."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from .offsets import Offsets, named

logger = logging.getLogger(__name__)

_EXPLAINED = (
    "Some data may have been lost because they are not available in Kafka any more: either they "
    "were aged out, or the topic was deleted before all of it was processed."
)


class DataLoss(Exception):
    """Records that the query should have read are gone."""


def report(losses: Iterator[str], fail: bool) -> None:
    """Fail with the first loss, or warn of each.

    Raises:
        DataLoss: `fail` is set and there is one.
    """
    for loss in losses:
        if fail:
            raise DataLoss(
                f"{_EXPLAINED} If the query shall go on without them, set the option "
                f'"failOnDataLoss" to "false". Reason: {loss}'
            )
        logger.warning("%s Reason: %s", _EXPLAINED, loss)


def changed(start: Offsets, end: Offsets) -> Iterator[str]:
    """Partitions that end before the offset where reading begins."""
    for each in sorted(start.keys() & end.keys()):
        if end[each] < start[each]:
            yield (
                f"Partition {each[0]}-{each[1]} offset was changed from {start[each]} to "
                f"{end[each]}. The start offset is beyond what is there, or the topic was deleted "
                "and created again"
            )


def missing(start: Offsets, end: Offsets) -> Iterator[str]:
    """Partitions that were read and are not there any more."""
    gone = start.keys() - end.keys()
    if gone:
        yield f"{named(gone)} are gone"


def trimmed(new: Offsets) -> Iterator[str]:
    """Partitions that the query sees for the first time, and that have lost their beginning."""
    for topic, partition in sorted(new):
        if new[topic, partition]:
            yield (
                f"Added partition {topic}-{partition} starts from {new[topic, partition]} instead "
                "of 0"
            )
