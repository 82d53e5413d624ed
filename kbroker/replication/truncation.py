"""The truncation offset of a follower whose log diverges from the leader's (KIP-101, KIP-279).

A leader that detects divergence returns the largest epoch that both logs can have, and its end
offset in the leader's log. The follower truncates to that offset, or to the end of this epoch in
its own log if that is lower, and fetches again. Each round removes at least one epoch that the
leader does not have.
"""

from __future__ import annotations

from kbroker.storage.epochs import UNDEFINED, LeaderEpochs


def truncation_offset(
    epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int
) -> int:
    """Return the offset to which a follower truncates its log.

    Args:
        epochs: Leader epochs of the follower.
        log_end: Log end offset of the follower.
        leader_epoch: Diverging epoch from the leader.
        leader_end: End offset of that epoch in the leader's log.
    """
    if leader_epoch < 0:
        return min(leader_end, log_end)
    own_epoch, own_end = epochs.end_offset_for(leader_epoch, log_end)
    if own_epoch == UNDEFINED:  # all local epochs are older: only the length can differ
        return min(leader_end, log_end)
    return min(leader_end, own_end, log_end)
