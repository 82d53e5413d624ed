"""Where a follower cuts its log when its leader's history parts from its own (KIP-101, KIP-279).

A leader that sees two histories part names the largest epoch that both can have, and where that
epoch ends in its log. The follower cuts there, or where its own part of that epoch ends, whichever
comes first, and asks again: each round removes at least one epoch that the leader does not have.
"""

from __future__ import annotations

from kbroker.storage.epochs import UNDEFINED, LeaderEpochs


def cut_at(epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int) -> int:
    """The offset from which on a follower's log must go.

    Parameters: `epochs` and `log_end` are the follower's; `leader_epoch` and `leader_end` are what
    its leader named: an epoch and the offset behind its last record.
    """
    if leader_epoch < 0:
        return min(leader_end, log_end)
    own_epoch, own_end = epochs.end_offset_for(leader_epoch, log_end)
    if own_epoch == UNDEFINED:  # all of ours are older: only the length can differ
        return min(leader_end, log_end)
    return min(leader_end, own_end, log_end)
