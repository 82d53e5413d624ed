"""Validation of offset commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import ErrorCode


class CommitCheck(NamedTuple):
    """Error codes that reject an offset commit.

    Attributes:
        of_all: Error for the whole request.
        of_one: Returns the error for one well-formed partition, by topic name, topic ID and
            partition.
    """

    request_error: ErrorCode
    partition_error: Callable[[str, UUID, int], ErrorCode] = lambda topic, topic_id, partition: (
        ErrorCode.NONE
    )


# First OffsetCommit version that accepts member epochs (KIP-848).
FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
# First TxnOffsetCommit version that identifies topics by ID, and that knows GROUP_ID_NOT_FOUND and
# STALE_MEMBER_EPOCH (KIP-1319).
FIRST_TXN_VERSION_OF_IDS = 6


def uniform_check(code: ErrorCode) -> CommitCheck:
    """Return a check with the same result for every partition."""
    return CommitCheck(code)
