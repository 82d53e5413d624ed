"""Offset commits and fetches of streams groups."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from ..harness import Harness


def test_commits_are_fenced_by_member_epoch(h: Harness) -> None:
    h.streams_beat("a", 0)
    partition = ("orders", 0)
    assert h.commit({partition: 1}, "a", 2) == [0]
    assert h.commit({partition: 1}, "a", 2, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert h.commit({partition: 1}, "x", 2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert h.commit({partition: 1}, "a", 3) == [ErrorCode.STALE_MEMBER_EPOCH]
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    h.streams_beat("a", 2, owned={"0": [0, 1]})
    stale = ErrorCode.STALE_MEMBER_EPOCH
    for other in (("orders", 3), ("audit", 0)):
        assert (
            h.commit({partition: 1, other: 1}, "a", 2) == [stale] * 2
        )  # one stale partition rejects all
    assert h.commit({partition: 1}, "a", 2) == [0]
    assert h.commit({partition: 1}, "a", 1) == [stale]
    for name in "ab":
        h.streams_beat(name, -1)
    assert h.commit({partition: 1}, "", -1) == [0]


def test_transactional_commits_are_fenced_by_epoch(h: Harness) -> None:
    h.streams_beat("a", 0)
    partition = {("orders", 0): 5}
    assert h.commit_in_transaction(partition, member_id="a", generation=2) == [0]
    for version, stale in ((5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)):
        for epoch in (1, 3):
            codes = h.commit_in_transaction(
                partition, member_id="a", generation=epoch, version=version
            )
            assert codes == [stale]
    assert h.commit_in_transaction(partition, member_id="x", generation=2) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    assert h.commit_in_transaction(partition) == [0], "the transaction fences its producer"
    h.end(commit=True)
    assert h.coordinator.committed("g") == {("orders", 0): 5}


def test_fetches_are_fenced_and_subscribed_offsets_are_kept(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.commit({("orders", 0): 5, ("audit", 0): 5}, "a", 2)
    assert h.fetch_error("a", 2) == 0
    assert h.fetch_error("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert h.fetch_error("x", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert h.fetch_error() == 0
    h.delete_offsets({"orders": [0], "audit": [0]})
    assert h.coordinator.committed("g") == {("orders", 0): 5}, "the group subscribes to the topic"


def test_offsets_expire_with_empty_group(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.commit({("orders", 0): 5, ("audit", 0): 5}, "a", 2)

    def expire() -> None:
        for piece in h.coordinator.expire(h.now):
            if piece is not None:
                h.settle(piece)

    h.ms += h.settings.offsets_retention_ms
    h.streams_beat("a", 2)
    expire()
    assert h.coordinator.committed("g") == {("orders", 0): 5}, (
        "offsets of unsubscribed topics expire"
    )
    h.streams_beat("a", -1)
    expire()
    assert h.describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert h.coordinator.committed("g") == {}
