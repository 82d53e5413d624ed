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
        # The leader's part of our latest epoch is shorter: ours goes from there on.
        (((1, 0), (2, 5)), 10, (2, 7), 7),
        # We lack the epoch that it names: everything after our last common epoch goes.
        (((1, 0), (3, 5)), 10, (2, 8), 5),
        # It names an epoch in which it went further than we did.
        (((1, 0), (3, 5)), 10, (1, 8), 5),
        # ... and one in which it did not go as far.
        (((1, 0), (3, 5)), 10, (1, 3), 3),
        # All that we have is older than what it names, and longer.
        (((1, 0),), 10, (4, 6), 6),
        # It has no epochs at all.
        (((1, 0),), 10, (-1, 6), 6),
        # Nothing of ours is as old as that.
        (((5, 0),), 10, (2, 0), 0),
        # We have nothing: nothing goes.
        ((), 0, (2, 7), 0),
    ],
)
def test_truncation_offset_is_the_lower_end_of_both_logs(
    entries: tuple[tuple[int, int], ...], log_end: int, leader: tuple[int, int], cut: int
) -> None:
    assert truncation_offset(history(*entries), log_end, *leader) == cut
