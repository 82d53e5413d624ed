"""Truncation offsets of followers."""

import pytest

from kbroker.replication.truncation import truncation_offset
from kbroker.storage.epochs import LeaderEpochs


def history(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("entries", "log_end", "leader", "cut"),
    [
        # The leader's part of the follower's latest epoch is shorter: truncate to its end.
        (((1, 0), (2, 5)), 10, (2, 7), 7),
        # The follower lacks the returned epoch: truncate to the end of the last common epoch.
        (((1, 0), (3, 5)), 10, (2, 8), 5),
        # The leader's part of the returned epoch is longer than the follower's.
        (((1, 0), (3, 5)), 10, (1, 8), 5),
        # The leader's part of the returned epoch is shorter than the follower's.
        (((1, 0), (3, 5)), 10, (1, 3), 3),
        # All local records are older than the returned epoch, and the log is longer.
        (((1, 0),), 10, (4, 6), 6),
        # The leader has no epochs.
        (((1, 0),), 10, (-1, 6), 6),
        # All local records are newer than the returned epoch.
        (((5, 0),), 10, (2, 0), 0),
        # The follower's log is empty.
        ((), 0, (2, 7), 0),
    ],
)
def test_truncation_offset_is_the_lower_end_of_both_logs(
    entries: tuple[tuple[int, int], ...], log_end: int, leader: tuple[int, int], cut: int
) -> None:
    assert truncation_offset(history(*entries), log_end, *leader) == cut
