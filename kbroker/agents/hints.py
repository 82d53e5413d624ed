"""Next actions after errors, in terms of tools."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.client.errors import (
    ClientError,
    NoSuchGroup,
    NoSuchPartition,
    NoSuchTopic,
    next_action,
)
from kbroker.client.offset_spec import LooksLikeTime
from kbroker.client.seek import NoOffsets
from kbroker.client.topics import TopicReplaced
from kbroker.protocol.errors import ErrorCode

_HINTS: Final[Mapping[ErrorCode | type[ClientError], str]] = MappingProxyType(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS: "describe_topic shows the existing topic",
        ErrorCode.INVALID_REPLICATION_FACTOR: "describe_cluster shows the number of brokers",
        ErrorCode.INVALID_CONFIG: "describe_configs shows the names if only_overridden is false",
        ErrorCode.NOT_ENOUGH_REPLICAS: "check_health shows which brokers are missing",
        ErrorCode.REQUEST_TIMED_OUT: "check_health shows whether all brokers are running",
        ErrorCode.OFFSET_OUT_OF_RANGE: "describe_topic shows the available offsets",
        # The answer to an offset commit from outside of a group that has members.
        ErrorCode.UNKNOWN_MEMBER_ID: "the group must have no members: stop its consumers, then try "
        "again",
        ErrorCode.NON_EMPTY_GROUP: "stop the consumers of the group, then try again",
        LooksLikeTime: "give times in the parameters `since` or `to_time`",
        NoSuchTopic: "list_topics returns the names",
        NoSuchGroup: "list_groups returns the names",
        NoSuchPartition: "describe_topic shows the partitions",
        NoOffsets: "give `topic`",
        TopicReplaced: "call delete_topic without `dry_run` to see the new topic",
    }
)


def hint_of(cause: ErrorCode | type[ClientError]) -> str | None:
    """Return the next action after an error, or None.

    Args:
        cause: Error code of a broker, or type of an error of the client.
    """
    hint = _HINTS.get(cause)
    if not isinstance(cause, ErrorCode):
        return hint
    hint = hint or next_action(cause)
    if cause.name.endswith("AUTHORIZATION_FAILED"):
        return f"the Kafka user of this server is not permitted to do this; {hint}"
    return hint
