"""Handling of data loss (option failOnDataLoss): records deleted before the query read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from .offsets import Offsets, named

logger = logging.getLogger(__name__)

_LOSS_TEXT = (
    "Some data may have been lost because they are not available in Kafka any more: either they "
    "were aged out, or the topic was deleted before all of it was processed."
)


class DataLoss(Exception):
    """Records that the query should have read were deleted."""


def report(losses: Iterator[str], fail: bool) -> None:
    """Raise DataLoss for the first loss, or log a warning for each.

    Args:
        losses: Descriptions of the losses.
        fail: Value of the option failOnDataLoss.

    Raises:
        DataLoss: `fail` is set and there is at least one loss.
    """
    for loss in losses:
        if fail:
            raise DataLoss(
                f"{_LOSS_TEXT} To continue without them, set the option "
                f'"failOnDataLoss" to "false". Reason: {loss}'
            )
        logger.warning("%s Reason: %s", _LOSS_TEXT, loss)


def changed(start: Offsets, end: Offsets) -> Iterator[str]:
    """Yield a loss for each partition whose end is before the start offset."""
    for each in sorted(start.keys() & end.keys()):
        if end[each] < start[each]:
            yield (
                f"Partition {each[0]}-{each[1]} offset was changed from {start[each]} to "
                f"{end[each]}. The start offset is after the end of the partition, or the topic "
                "was deleted and created again"
            )


def missing(start: Offsets, end: Offsets) -> Iterator[str]:
    """Yield a loss if partitions were deleted since the last batch."""
    gone = start.keys() - end.keys()
    if gone:
        yield f"{named(gone)} no longer exist"


def trimmed(new: Offsets) -> Iterator[str]:
    """Yield a loss for each new partition whose first records are already deleted."""
    for topic, partition in sorted(new):
        if new[topic, partition]:
            yield (
                f"Added partition {topic}-{partition} starts from {new[topic, partition]} instead "
                "of 0"
            )
