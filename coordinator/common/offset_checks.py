"""Reasons to reject an offset commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import ErrorCode


class Check(NamedTuple):
    """Why offsets are not taken: all of them, or (where they are well-formed) that of a partition, by
    name and id of its topic."""

    of_all: ErrorCode
    of_one: Callable[[str, UUID, int], ErrorCode] = lambda topic, topic_id, partition: (
        ErrorCode.NONE
    )


FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
"""Of OffsetCommit."""


def always(code: ErrorCode) -> Check:
    """The same for every partition."""
    return Check(code)
